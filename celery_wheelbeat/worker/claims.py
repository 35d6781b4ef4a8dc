"""Claims: which copy of a run may execute. A pure decision.

All copies of a run carry the same task id and fire time; each message carries its own nonce. The first copy that
reaches a worker is elected, and its nonce is stored in the claim. All other copies are dropped. Celery's delivery rules
still apply to the elected message: it is dropped only after its run has succeeded or was skipped, and it waits while
the outcome of its run is unknown. ``state_after`` and ``decide`` define these rules; stores that decide on their server
(Redis) are tested against them. The rules must never rely on ``redelivered`` alone: a prefetched message that never ran
comes back redelivered, too.
"""

from __future__ import annotations

import re
from enum import Enum
from hashlib import blake2b, sha256
from json import JSONEncoder, encoder
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.states import RETRY, SUCCESS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LEVELS_DESCRIBED = 8
"""Depth to which arguments that only pickle carries are described; deeper or circular parts are given by ``repr``."""
KEY_BYTES = 16
NONCE_BYTES = 8
EXECUTION_BYTES = 4
HALF_A_DIGEST_BYTES = 4
"""A claim of an older release holds the first half."""
_HEX = "0123456789abcdef"
_ADDRESS = re.compile(" at 0x[0-9A-Fa-f]+")


class State(Enum):
    """State of the elected message."""

    def __init__(self, letter: str) -> None:
        self.letter = letter

    RUNNING = "R"
    OPEN = "O"
    """The execution ended without success, or the message was returned. It may run again; no other message may."""
    DONE = "D"
    """The execution succeeded, or its next attempt is published."""
    SKIPPED = "S"
    """Acknowledged without an execution, because another one held its lease or it came too late."""


class Verdict(Enum):
    """The decision about the message that asks for a claim."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.runs = word in ("elected", "mine", "taken_over", "reopened")
        """Whether the message may run; the store has then written the claim for it."""
        self.drops = word in ("other", "finished")
        """Whether the message is acknowledged and dropped."""

    ELECTED = "elected"
    """First copy, or the claim had expired."""
    MINE = "mine"
    """This execution already holds the claim: the store's first answer was lost."""
    TAKEN_OVER = "taken_over"
    """The broker delivers the elected message again: its worker died."""
    REOPENED = "reopened"
    """The elected message comes back after an execution without success, or after it was returned."""
    HELD = "held"
    """The elected message again, and its run needs a lease. Acquire the lease first: a live execution holds it."""
    TWIN = "twin"
    """The elected message again, while its execution may still be running: it waits until the outcome is known."""
    OTHER = "other"
    """Another copy was elected."""
    FINISHED = "finished"
    """The run has succeeded or was skipped, and its message comes back."""
    UNLIKE = "unlike"
    """Same id and fire time, but another task or other arguments: not a copy."""


class Claim(NamedTuple):
    """A claim as a store holds it. The tokens are short prefixes of hashes, in hex."""

    state: State
    nonce: str
    execution: str
    digest: str
    started_ms: int
    """Start of the execution by the store's clock."""
    ended_ms: int = 0
    """Its end, 0 while it runs."""

    def is_about(self, digest: str) -> bool:
        """Whether the claim was made for task and arguments of ``digest``."""
        return digest.startswith(self.digest)


class ClaimRequest(NamedTuple):
    """The request of one execution for a claim."""

    nonce: str
    execution: str
    """Unique per execution: a repeated request after a lost answer gets the verdict ``MINE``."""
    digest: str
    redelivered: bool
    """The broker delivered the message before, or its transport does not flag redeliveries."""
    may_take_over: bool = True
    """False while a lease decides whether the previous execution is still alive."""


def decide(held: Claim | None, asked: ClaimRequest) -> Verdict:
    """Decide about ``asked``, given the claim ``held``; None: there is no claim, or it has expired."""
    if held is None:
        return Verdict.ELECTED
    if held.nonce != asked.nonce:
        return Verdict.OTHER if held.is_about(asked.digest) else Verdict.UNLIKE
    if held.execution == asked.execution:
        return Verdict.MINE
    if held.state is not State.RUNNING:
        return Verdict.REOPENED if held.state is State.OPEN else Verdict.FINISHED
    if not asked.may_take_over:
        return Verdict.HELD
    return Verdict.TAKEN_OVER if asked.redelivered else Verdict.TWIN


def state_after(end: str | None) -> State:
    """Return the claim's state after an execution that ended in Celery's state ``end``; None: it was interrupted.

    A retry publishes its next attempt before it acknowledges its message, so repeating this attempt would create two.
    After any other end than success and retry, Celery executes the message if it comes back (for example from a
    dead-letter queue); so does the gate.
    """
    return State.DONE if end in (SUCCESS, RETRY) else State.OPEN


def claim_key(task_id: str, fire_ms: int, nesting: int, retries: int, apart: str = "") -> str:
    """Return the claim key of one attempt of one run: 32 hex digits.

    Retries and replaced tasks are attempts of their own. ``apart`` separates messages that share an id but are not
    copies of each other.
    """
    text = f"{task_id}\0{fire_ms}\0{nesting}\0{retries}\0{apart}"
    return blake2b(text.encode(errors="surrogatepass"), digest_size=KEY_BYTES).hexdigest()


def content_id(task: str, args: Any, kwargs: Any) -> str:
    """Return SHA-256 of task name and arguments, which replaces the task id where the policy's key is ``content``."""
    return sha256(_text_of(task, args, kwargs)[0]).hexdigest()


def execution_token(owner: str) -> str:
    """Return the execution token of the delivery that the worker's main process has named ``owner``."""
    return blake2b(owner.encode(errors="surrogatepass"), digest_size=EXECUTION_BYTES).hexdigest()


def digest_of(task: str, args: Any, kwargs: Any, job: str = "") -> str:
    """Return a 64-bit digest of task, arguments and job; it tells a copy from another message with the same id.

    An attacker who chooses arguments cannot find a message with the digest of a given run. The first half is the digest
    of an older release, which covers neither the job nor whether ``"Decimal('1')"`` was a text or a number.
    """
    text, described = _text_of(task, args, kwargs)
    whole = b"%d:%d:%b%b%b" % (len(text), len(described), text, described, _octets(job))
    halves = (
        blake2b(text, digest_size=HALF_A_DIGEST_BYTES),
        blake2b(whole, digest_size=HALF_A_DIGEST_BYTES, person=b"rest"),
    )
    return halves[0].hexdigest() + halves[1].hexdigest()


def nonce_token(nonce: str) -> str:
    """Return the part of a message's nonce that a claim stores: the first half of 32 hex digits, else a hash."""
    if len(nonce) == 32 and not nonce.strip(_HEX):
        return nonce[: 2 * NONCE_BYTES]
    return blake2b(_octets(nonce), digest_size=NONCE_BYTES).hexdigest()


def _text_of(task: str, args: Any, kwargs: Any) -> tuple[bytes, bytes]:
    """Return task and arguments as JSON, and the descriptions of the values in it that JSON cannot represent."""
    described: list[str] = []

    def describe(value: object) -> str:
        described.append(_stable(value))
        return described[-1]

    try:
        try:
            return "".join(_pieces_of([task, args, kwargs], 0)).encode(), b""
        except _NotJson:
            text = JSONEncoder(sort_keys=True, check_circular=False, default=describe).encode([task, args, kwargs])
            return text.encode(), _octets("\0".join(described))
    except (TypeError, ValueError, RecursionError):
        # keys other than strings, circular or very deep arguments: only pickle carries those
        return _octets(f"{task}\0{_stable(args)}\0{_stable(kwargs)}"), b""


class _NotJson(Exception):
    pass


def _refuse(_: object) -> str:
    raise _NotJson


def _stable(value: object, levels: int = LEVELS_DESCRIBED) -> str:
    """Describe a value so that two processes describe equal values alike; else a copy would look like another message.

    The order of a set differs between processes, and a repr may contain an address or fail.
    """
    if levels and isinstance(value, (list, tuple)):
        return f"[{', '.join(_stable(item, levels - 1) for item in value)}]"
    if levels and isinstance(value, dict):
        value = {(_stable(key, levels - 1), _stable(item, levels - 1)) for key, item in value.items()}
    if levels and isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(_stable(item, levels - 1) for item in value))}}}"
    try:
        return _ADDRESS.sub("", repr(value))
    except Exception:
        return type(value).__qualname__


_pieces_of: Callable[[object, int], Iterable[str]]
"""Writes JSON with sorted keys; the second argument is how deep the text begins."""
if c_make_encoder := getattr(encoder, "c_make_encoder", None):
    # JSONEncoder builds an encoder per message to detect circles, which takes as long as the encoding itself; here a
    # circle ends in a RecursionError
    _pieces_of = c_make_encoder(None, _refuse, encoder.encode_basestring_ascii, None, ": ", ", ", True, False, True)
else:

    def _pieces_of(value: object, _depth: int) -> Iterable[str]:
        return JSONEncoder(sort_keys=True, default=_refuse).iterencode(value)


def _octets(text: str) -> bytes:
    return text.encode(errors="surrogatepass")  # JSON may hold a lone surrogate; any text may be an id
