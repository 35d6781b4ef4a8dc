"""An envelope: the template of one form's messages on one transport, and the encoding of a job's parts.

Made from two messages that Celery rendered with different ids, times and arguments. The skeleton of the first must
render the second byte by byte, or the form is not for the fast lane. An envelope is valid for one process, one
connection and one configuration; its holder checks that with ``hooks.Guard`` and ``hooks.settings_token``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import UTC
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Union

from celery_wheelbeat.dispatch.messages.expiry import expiries, has_all_digits, lifetime_of, written_expiry
from celery_wheelbeat.dispatch.messages.patterns import (
    NOTHING,
    PRIORITY,
    TIME_LIMIT,
    TIME_LIMITS,
    Own,
)
from celery_wheelbeat.dispatch.messages.template import (
    TEXT_LENGTH_BYTES,
    Hole,
    MarkedValue,
    Pieces,
    Site,
    Skeleton,
    TextHole,
    Uncut,
)
from celery_wheelbeat.jobs.headers import JOB

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from celery_wheelbeat.dispatch.messages.flat_texts import FlatTexts
    from celery_wheelbeat.dispatch.messages.part_cache import PartColumns
    from celery_wheelbeat.dispatch.messages.recording import Recording
    from celery_wheelbeat.dispatch.messages.run_ids import Octets
    from celery_wheelbeat.dispatch.messages.task_body import Encoded, TaskBody
    from celery_wheelbeat.dispatch.messages.template import Column, Messages
    from celery_wheelbeat.dispatch.messages.tracing import Traces
    from celery_wheelbeat.schedules.kinds import Int64s

NAME = "periodic_task_name"


class SampleMessage(NamedTuple):
    """The values from which a recorded message was made."""

    run_id: str
    fire_ms: int
    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    own: Own = NOTHING


class Stamps(NamedTuple):
    """The values that differ from run to run, one element per message."""

    ids: Octets
    fire_ms: Int64s
    nonces: Octets
    tags: Column
    """Empty on AMQP."""
    now: datetime
    """The app's now: relative expiry counts from here."""
    traces: Traces | None = None
    """Required by envelopes that are ``observed``."""


class Places(Protocol):
    """The places that job-specific options lead to."""

    def key_of(self, own: Own) -> bytes | str:
        """Return the key of the only place, or a reason for the celery lane."""

    def key_in(self, queue: str, own: Own) -> bytes:
        """Return the key of the place for messages to ``queue``."""

    def are_outdated(self) -> bool:
        """Return whether they may lead elsewhere by now."""


class Envelope(ABC):
    """Base of the envelopes of all transports. Envelopes of equal ``identity`` make equal messages."""

    skeleton: Skeleton
    opening_width = 0

    def __init__(self, recording: Recording, body: TaskBody, own: Own) -> None:
        """``own``: the job-specific options of the recorded message."""
        self.key = recording.key
        self.exchange = recording.exchange
        self.routing_key = recording.routing_key
        self.body = body
        expires = recording.headers.get("expires") is not None
        self.timed = expires and own.expires_s is not None
        """Whether relative expiries are job-specific."""
        self.dated = expires and own.expires_at is not None
        """Whether expiries are job-specific instants."""
        self.lifetime = None if self.has_expiries else lifetime_of(recording)
        self.observers: Sequence[str] = ()
        """Tracing tools whose headers are part of its messages."""
        self.texts: tuple[TextHole, ...] = ()
        """The holes of job-specific values."""
        self.places: Places | None = None
        """Where job-specific options lead; None: all messages go to ``key``."""
        self._before_key: str | None = None
        """Value of the header ``wheelbeat_job`` up to the key of the job; None without that header."""
        self._stretch: Mapping[str, Any] = {}
        """The headers up to the name, from the first job-specific one on, without the user's."""
        self._time_limits: Sequence[Any] = recording.headers.get(TIME_LIMIT, ())

    @abstractmethod
    def pieces(self, encoded: Encoded, name: str, own: Own = NOTHING) -> Pieces:
        """Return the job-specific parts of one job, whose arguments ``body`` has encoded."""

    def columns(self, flat: FlatTexts, name: str) -> PartColumns | None:
        """Return the parts of many jobs called ``name`` without job-specific values; None if there is no quick way."""
        del flat, name
        return None

    @staticmethod
    @abstractmethod
    def write_name(name: str) -> bytes:
        """Return the header ``periodic_task_name`` as this transport writes it."""

    @staticmethod
    @abstractmethod
    def write_headers(headers: Mapping[str, Any]) -> bytes:
        """Return consecutive headers as this transport writes them; raises if a value cannot be written."""

    @staticmethod
    @abstractmethod
    def write_text(text: str, site: Site) -> bytes:
        """Return a job-specific text as this transport writes it; raises if it cannot be written."""

    @staticmethod
    @abstractmethod
    def write_priority(priority: int) -> bytes:
        """Return a priority as this transport writes it."""

    @property
    def names_key(self) -> bool:
        """Whether its messages contain the key of the job."""
        return self._before_key is not None

    @abstractmethod
    def fires(self, fire_ms: Int64s) -> Octets:
        """Return fire times as this transport writes them, one row each."""

    @staticmethod
    @abstractmethod
    def write_time(seconds: float) -> bytes:
        """Return a time as this transport writes it."""

    def key_of(self, own: Own) -> bytes | str:
        """Return the key of the place for a job's messages, or why they need the celery lane."""
        return self.places.key_of(own) if self.places is not None else self.key

    def key_in(self, queue: str, own: Own) -> bytes:
        """Return the key of the place for messages that were recorded for ``queue``."""
        return self.places.key_in(queue, own) if self.places is not None else self.key

    @property
    def has_expiries(self) -> bool:
        """Whether cached parts contain an expiry."""
        return self.timed or self.dated

    @property
    def observed(self) -> bool:
        """Whether its messages have holes that ``Stamps.traces`` fills."""
        return Hole.TRACE in self.skeleton.holes or Hole.QUEUED_AT in self.skeleton.holes

    def unframed(self, message: bytes) -> bytes:
        """Return ``message`` without the framing that the fast lane adds, as a recording holds it."""
        return message

    def render(self, pieces: Mapping[Hole | TextHole, Column], stamps: Stamps) -> Messages:
        """Return one message per job of ``pieces``, with ``stamps``."""
        columns: dict[Hole | TextHole, Column] = {
            Hole.ID: stamps.ids,
            Hole.FIRE: self.fires(stamps.fire_ms),
            Hole.NONCE: stamps.nonces,
            Hole.TAG: stamps.tags,
            **pieces,
        }
        if self.lifetime is not None:
            expires = (stamps.now.astimezone(UTC) + self.lifetime).astimezone(stamps.now.tzinfo)
            columns[Hole.EXPIRES] = expires.isoformat(timespec="microseconds").encode()
        elif self.timed:
            columns[Hole.EXPIRES] = expiries(stamps.now, columns[Hole.LIFETIME])  # type: ignore[arg-type]
        if stamps.traces is not None:
            columns[Hole.TRACE], columns[Hole.SPAN] = stamps.traces.traces, stamps.traces.spans
            columns[Hole.OTHER_TRACE] = stamps.traces.other_traces
            columns[Hole.OTHER_SPAN] = stamps.traces.other_spans
            columns[Hole.CHANCE] = stamps.traces.chances
            columns[Hole.QUEUED_AT] = self.write_time(stamps.traces.queued_at_s)
            columns[Hole.STARTED_AT] = stamps.traces.started_at
        return self.skeleton.render(columns)

    def _find_own(self, recording: Recording, sample: SampleMessage) -> bytes:
        """Find and return the job-specific stretch of headers in a recorded message. Raises ``Uncut``."""
        names = list(recording.headers)
        job = str(recording.headers.get(JOB, ""))
        if sample.own.key and job.endswith(sample.own.key):
            self._before_key = job.removesuffix(sample.own.key)
        users = list(sample.own.headers)
        varying = [*users, *([JOB] if self.names_key else []), NAME]
        first = min((names.index(name) for name in varying if name in names), default=0)
        stretch = names[first : names.index(NAME) + 1]
        if not set(varying) <= set(stretch) or stretch[: len(users)] != users:
            raise Uncut("its own headers do not stand side by side before its name")
        rest = stretch[len(users) :]
        self._stretch = {name: None if name in varying else recording.headers[name] for name in rest}
        return self._own_text(sample.name, sample.own)

    def _own_text(self, name: str, own: Own) -> bytes:
        if len(self._stretch) == 1 and not own.headers:
            return self.write_name(name)
        headers = {**own.headers, **self._stretch, NAME: name}
        if self._before_key is not None:
            headers[JOB] = self._before_key + own.key
        return self.write_headers(headers)

    def _find_texts(
        self, wire: bytes, own: Own, names: Iterable[str], site: Site = Site.HEADERS, start: int = 0
    ) -> list[MarkedValue]:
        """Find job-specific texts at one site of a recorded message, from ``start`` on, and return their marks.

        A text that is not found has no effect on the message; the second recording proves that.
        """
        marks = [self._mark(TextHole(name, site), own, start) for name in names]
        return [mark for mark in marks if wire.find(mark.value, start) >= 0]

    def _find_time_limits(self, own: Own) -> list[MarkedValue]:
        return [self._mark(TextHole(TIME_LIMIT), own)] if any(name in own.options for name in TIME_LIMITS) else []

    def _mark(self, hole: TextHole, own: Own, start: int = 0) -> MarkedValue:
        return MarkedValue(hole, self._written(hole, own, own.texts), None, start)

    def _written(self, hole: TextHole, own: Own, texts: Mapping[str, str]) -> bytes:
        """Return a job-specific value as it is written at the site of ``hole``; raises if that is not possible."""
        if hole.option == TIME_LIMIT:
            defaults = zip(TIME_LIMITS, self._time_limits, strict=True)
            return self.write_headers({TIME_LIMIT: [own.options.get(name, default) for name, default in defaults]})
        if hole.option == PRIORITY:
            return self.write_priority(own.options[PRIORITY])
        return self.write_text(texts[hole.option], hole.site)

    def _own_values(self, own: Own) -> list[bytes]:
        """Return what fills ``texts``."""
        texts = own.texts
        return [self._written(hole, own, texts) for hole in self.texts]

    def _with_own(self, pieces: Pieces, values: Sequence[bytes], own: Own) -> Pieces:
        """Add job-specific values, their lengths, and the lifetime; see ``Pieces``."""
        opening = [len(value).to_bytes(TEXT_LENGTH_BYTES, "little") for value in values]
        if self.has_expiries:
            opening.append(written_expiry(own))
        return pieces._replace(opening=b"".join((*opening, pieces.opening)), name=b"".join((pieces.name, *values)))

    @cached_property
    def identity(self) -> tuple[object, ...]:
        """Return the values that determine the bytes of its messages."""
        return (
            self.key,
            self.exchange,
            self.routing_key,
            self.skeleton,
            self.lifetime,
            self.timed,
            self.dated,
            self.texts,
            str(self._time_limits),
            self._before_key,
            repr(self._stretch),
            self.body.identity(),
        )


def marks_of(recording: Recording, sample: SampleMessage) -> list[MarkedValue]:
    """Return the marks that every transport writes in the same way. Raises ``Uncut``."""
    headers = recording.headers
    fixed_id = headers["id"] != sample.run_id
    marks = [MarkedValue(Hole.NONCE, headers["wheelbeat_nonce"].encode(), None)]
    if not fixed_id:
        marks.append(MarkedValue(Hole.ID, sample.run_id.encode(), 2 + (headers["root_id"] == sample.run_id)))
    if headers.get("eta") is not None:
        raise Uncut("it has a countdown or an eta")
    if headers.get("expires") is not None and sample.own.expires_at is None:
        if not has_all_digits(recording):
            raise Uncut(f"its expiry {headers['expires']!r} has no microseconds")
        marks.append(MarkedValue(Hole.EXPIRES, headers["expires"].encode()))
    return marks


class Refusal(NamedTuple):
    """No lane can send a message of a form: the broker, the serializer or user code refuses it."""

    reason: str
    error: BaseException | None = None
    """The exception behind it, for its traceback."""


Answer = Union["Envelope", str, Refusal]
"""An envelope, the reason for the celery lane, or a refusal, which quarantines the jobs."""
