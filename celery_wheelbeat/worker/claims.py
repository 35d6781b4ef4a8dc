"""Claims: which of the copies of a run may execute. A pure decision.

All copies of a run carry the same task id and fire time; each message carries a nonce of its own. The first copy that
reaches a worker is elected, and its nonce decides from then on: every other copy is dropped, and the elected message
keeps the delivery that Celery gives to any message. It is dropped only once its run has succeeded or was skipped; while
nobody knows how its run ended, it waits. ``state_after`` and ``decide`` are the only statement of these rules; a store
that decides on its server (Redis) is tested against them. They must never judge by ``redelivered`` alone: a message
that was prefetched and never ran comes back redelivered, too.
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
"""Of arguments that only pickle carries; what lies deeper, or in a circle, is described as Python does it."""
KEY_BYTES = 16
NONCE_BYTES = 8
EXECUTION_BYTES = 4
HALF_A_DIGEST_BYTES = 4
"""A claim of an older release holds the first half."""
_HEX = "0123456789abcdef"
_ADDRESS = re.compile(" at 0x[0-9A-Fa-f]+")


class State(Enum):
    """How far the elected message has come."""

    def __init__(self, letter: str) -> None:
        self.letter = letter

    RUNNING = "R"
    OPEN = "O"
    """The execution ended without success, or the message was given back: it may run again, no other message may."""
    DONE = "D"
    """The execution succeeded, or its next attempt is published."""
    SKIPPED = "S"
    """Acknowledged without an execution, because another one held its lease or it came too late."""


class Verdict(Enum):
    """What becomes of the message that asked."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.runs = word in ("elected", "mine", "taken_over", "reopened")
        """Whether the store has written the claim for the one that asked."""
        self.drops = word in ("other", "finished")
        """Whether the message is to be acknowledged and forgotten."""

    ELECTED = "elected"
    """First copy, or the claim had expired."""
    MINE = "mine"
    """The claim is this very execution's: the store's first answer was lost."""
    TAKEN_OVER = "taken_over"
    """The broker delivers the elected message again: its worker died."""
    REOPENED = "reopened"
    """The elected message comes back after an execution without success, or after it was given back."""
    HELD = "held"
    """The elected message once more, and its run needs a lease: ask for it first, a living execution holds it."""
    TWIN = "twin"
    """The elected message once more, while its execution may be alive: it waits until the outcome is known."""
    OTHER = "other"
    """Another copy was elected."""
    FINISHED = "finished"
    """The run has succeeded, or was skipped, and its message comes back."""
    UNLIKE = "unlike"
    """Same id and fire time, but another task or other arguments: not a copy at all."""


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


class Asked(NamedTuple):
    """What an execution brings along when it asks for a claim."""

    nonce: str
    execution: str
    """Unique per execution, so that asking again after a lost answer is harmless."""
    digest: str
    redelivered: bool
    """The broker says that it delivered the message before, or cannot say (transports that never flag it)."""
    may_take_over: bool = True
    """False while a lease decides whether the previous execution is still alive."""


def decide(held: Claim | None, asked: Asked) -> Verdict:
    """Say what becomes of ``asked`` given the claim ``held``, None where there is none or it has expired."""
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
    """Say how an execution that ended in Celery's state ``end`` leaves its claim; None = it was torn away.

    The next attempt of a retry is published before its message is acknowledged; to repeat the attempt would make two
    of it. After any other end than these two Celery would execute the message if it came back, as from a queue of dead
    letters, and so do we.
    """
    return State.DONE if end in (SUCCESS, RETRY) else State.OPEN


def claim_key(task_id: str, fire_ms: int, nesting: int, retries: int, apart: str = "") -> str:
    """Name the claim of one attempt of one run: 32 hex digits.

    A retry and a replaced task are attempts of their own. ``apart`` separates messages that share an id without being
    copies of each other.
    """
    text = f"{task_id}\0{fire_ms}\0{nesting}\0{retries}\0{apart}"
    return blake2b(text.encode(errors="surrogatepass"), digest_size=KEY_BYTES).hexdigest()


def content_id(task: str, args: Any, kwargs: Any) -> str:
    """Name a run by what it does: SHA-256 of task name and arguments, in place of its task id."""
    return sha256(_text_of(task, args, kwargs)[0]).hexdigest()


def execution_token(owner: str) -> str:
    """Name the execution of the delivery that a worker's main process calls ``owner``."""
    return blake2b(owner.encode(errors="surrogatepass"), digest_size=EXECUTION_BYTES).hexdigest()


def digest_of(task: str, args: Any, kwargs: Any, job: str = "") -> str:
    """Digest of what a run does and for which job, to tell a copy from another message under the same id: 64 bits.

    Somebody may choose what another message says, but cannot find one with the digest of a given run. The first half is
    that of an older release, which knows neither the job nor whether ``"Decimal('1')"`` was a text or a number.
    """
    text, described = _text_of(task, args, kwargs)
    whole = b"%d:%d:%b%b%b" % (len(text), len(described), text, described, _octets(job))
    halves = (
        blake2b(text, digest_size=HALF_A_DIGEST_BYTES),
        blake2b(whole, digest_size=HALF_A_DIGEST_BYTES, person=b"rest"),
    )
    return halves[0].hexdigest() + halves[1].hexdigest()


def nonce_token(nonce: str) -> str:
    """Shorten the nonce of a message to what a claim keeps of it: the first half of 32 hex digits, else a hash."""
    if len(nonce) == 32 and not nonce.strip(_HEX):
        return nonce[: 2 * NONCE_BYTES]
    return blake2b(_octets(nonce), digest_size=NONCE_BYTES).hexdigest()


def _text_of(task: str, args: Any, kwargs: Any) -> tuple[bytes, bytes]:
    """Write task and arguments as JSON; beside it, what that describes in words because JSON does not know it."""
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
        # keys that are no strings, arguments in a circle or very deep: only pickle carries those
        return _octets(f"{task}\0{_stable(args)}\0{_stable(kwargs)}"), b""


class _NotJson(Exception):
    pass


def _refuse(_: object) -> str:
    raise _NotJson


def _stable(value: object, levels: int = LEVELS_DESCRIBED) -> str:
    """Describe a value so that two processes describe equal ones alike, or a copy would pass for another message.

    A set is in another order in every process, and a repr may hold an address or fail.
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
    # JSONEncoder builds one for each message, which takes as long as the encoding, in order to recognize circles; here
    # they end in a RecursionError
    _pieces_of = c_make_encoder(None, _refuse, encoder.encode_basestring_ascii, None, ": ", ", ", True, False, True)
else:

    def _pieces_of(value: object, _depth: int) -> Iterable[str]:
        return JSONEncoder(sort_keys=True, default=_refuse).iterencode(value)


def _octets(text: str) -> bytes:
    return text.encode(errors="surrogatepass")  # JSON may hold half a character, and whatever has an id has a claim
