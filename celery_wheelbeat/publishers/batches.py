"""What the scheduling thread and the sender of a fast lane hand to each other: batches of finished messages, outcomes.

Values only. A batch is immutable and belongs to the sender until its outcome has been polled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, Union

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_wheelbeat.publishers import FailureKind
    from celery_wheelbeat.publishers.envelope import Envelope
    from celery_wheelbeat.publishers.envelope_maker import Arguments
    from celery_wheelbeat.publishers.patterns import Form

NONCE_LENGTH = 32


class Parcel(NamedTuple):
    """Messages that go to one place, one after the other."""

    key: bytes
    """Redis: the list; AMQP: the exchange, which the messages say themselves."""
    size: int
    """How many."""
    data: memoryview
    """Octets; parcels of several batches may share their memory."""


class Batch(NamedTuple):
    """Messages that are sent, and settled, together. Positions count through all parcels."""

    token: int
    parcels: Sequence[Parcel]
    nonces: bytes
    """32 hex digits per message, by which a returned one is recognised."""
    epoch: int
    """Number of the connection that its envelopes were made on."""

    @property
    def size(self) -> int:
        """Messages in it."""
        return len(self.nonces) // NONCE_LENGTH


class Failure(NamedTuple):
    """Messages of a batch that were not confirmed, for one reason."""

    positions: Sequence[int]
    kind: FailureKind
    reason: str


class Outcome(NamedTuple):
    """What became of a batch: every message that no failure names is confirmed."""

    token: int
    at_ms: int
    failures: Sequence[Failure] = ()


class Refusal(NamedTuple):
    """No message of a form would be taken: by the broker, or by what Celery makes it with."""

    reason: str
    error: BaseException | None = None
    """Whose traceback says more."""


Answer = Union["Envelope", str, Refusal]
"""An envelope, or the reason why Celery has to send, or why nobody can."""


class Verdict(NamedTuple):
    """The answer to ``Sender.ask``."""

    form: Form
    epoch: int
    answer: Answer
    asked_in: int = 0
    """What was given with the question."""


class Comparison(NamedTuple):
    """The answer to ``Sender.compare``."""

    form: Form
    epoch: int
    difference: str
    """What Celery renders otherwise now; empty where nothing differs."""


class Wire(Protocol):
    """One broker connection. Called by the sender's thread only; what it raises means that the connection is lost."""

    blocked: str
    """Why the broker takes nothing at the moment, as it said itself; empty where it does."""
    on_wait: Callable[[], None]
    """Called now and then while a call takes long; what it raises ends the call."""

    def connect(self) -> None:
        """Open a new connection."""

    def close(self, *, broken: bool) -> None:
        """Close what there is of it; of a ``broken`` one only our side."""

    def send(self, batch: Batch) -> None:
        """Write ``batch``."""

    def receive(self, timeout_s: float) -> Sequence[Outcome]:
        """Wait up to ``timeout_s`` for news about batches that were sent; also keeps the connection alive."""

    def settle(self, batches: Sequence[Batch], reason: str) -> Sequence[Outcome]:
        """On a new connection: say what became of ``batches`` that were sent on the lost one, all of them."""

    def make(self, form: Form, candidates: Sequence[Arguments]) -> Answer:
        """Make the envelope of ``form`` on this connection."""

    def compare(self, envelope: Envelope, form: Form, arguments: Arguments) -> str:
        """Return how the messages of ``envelope`` differ from what Celery renders now; empty where they do not."""
