"""A line: what one beat says on the rolls. Written by that beat alone, replaced as a whole, read by all.

A line is a JSON object of at most 64 kB. What another process wrote is checked field by field; whatever cannot be read
raises ``InvalidLine``. Masks of shards are hexadecimal numbers, shard 0 is the lowest bit. A mark may be lowered by the
encoding, which costs copies; it is never raised, which would lose runs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeVar

from celery_wheelbeat.errors import WheelbeatError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

VERSION: Final = 1
LINE_BYTES: Final = 65_536
ENTRIES_LISTED: Final = 2_000
"""A beat with more entries than this says only the digest of all."""
ODD_LISTED: Final = 500
"""Marks of entries sent outside of the share that a line holds; without its mark, an entry is sent again at a take."""
GROUPS: Final = 16
"""Number of different marks per destination that a line holds."""
SHARDS_MAX: Final = 256
TEXT_CHARACTERS: Final = 200
AHEAD_MS: Final = 5_000
_NUMBER_MAX: Final = 1 << 53
_Key = TypeVar("_Key")


class InvalidLine(WheelbeatError, ValueError):
    """A line that cannot be read."""


class Standing(Enum):
    """How far a beat is in its life."""

    JOINING = "joining"
    """Loads; sends nothing."""
    READY = "ready"
    LEAVING = "leaving"
    """Waits for what is on its way."""
    LEFT = "left"
    """Sends nothing any more."""


@dataclass(frozen=True, slots=True)
class BeatLine:
    """What one beat says. Shards are numbers below ``shards``; marks are fire times in ms."""

    beat_id: str
    number: int = 0
    """Number of this line among all lines of its beat; a greater one is newer."""
    standing: Standing = Standing.JOINING
    order: int = 0
    """Seniority of the beat; 0 = not known yet."""
    shards: int = SHARDS_MAX
    own: frozenset[int] = frozenset()
    """Shards that the beat sends or is about to take."""
    able: frozenset[str] = frozenset()
    """Destinations whose connection is up; empty while the beat can read no roll (``Attendance.hears``)."""
    marks: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Destination → shard of ``own`` → mark; a shard without one never had any."""
    left: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Destination → shard that was let go → final mark, until another line has it."""
    odd: Mapping[str, int] = field(default_factory=dict)
    """Hash of an entry that is sent outside of the share → its mark."""
    entries: frozenset[str] | None = frozenset()
    """``entry_hash`` of each entry that the beat knows; None = too many, compare ``digest``."""
    digest: str = ""
    """Digest of all entries."""
    active: int = 16
    damped: bool = False
    offset_ms: int = 0
    """The beat's clock minus the clock of the store."""
    steps: int = 0
    """How often its clock was set back by more than 5 s."""
    rolls: tuple[str, ...] = ()
    release: str = ""
    account: Mapping[str, Any] = field(default_factory=dict)
    """Sums of its ledger, for the view of all beats; not interpreted here."""

    def knows(self, entry: str, digest: str) -> bool:
        """Return whether the beat knows the entry with this hash; ``digest``: that of the beat that asks."""
        return self.digest == digest if self.entries is None else entry in self.entries

    def to_text(self) -> str:
        """Return the line as JSON; raises ``InvalidLine`` if it is longer than ``LINE_BYTES``."""
        text = json.dumps(
            {
                "v": VERSION,
                "beat": self.beat_id,
                "n": self.number,
                "state": self.standing.value,
                "order": self.order,
                "shards": self.shards,
                "own": mask_of(self.own),
                "able": sorted(self.able),
                "marks": {name: _grouped(marks) for name, marks in self.marks.items()},
                "left": {name: _grouped(marks) for name, marks in self.left.items()},
                "odd": dict(sorted(self.odd.items())[:ODD_LISTED]),
                "entries": None if self.entries is None else sorted(self.entries),
                "digest": self.digest,
                "active": self.active,
                "damped": self.damped,
                "offset": self.offset_ms,
                "steps": self.steps,
                "rolls": list(self.rolls),
                "release": self.release,
                "account": dict(self.account),
            },
            separators=(",", ":"),
        )
        if len(text) > LINE_BYTES:
            raise InvalidLine(f"line of beat {self.beat_id}: {len(text)} bytes, expected at most {LINE_BYTES}")
        return text

    def not_ahead_of(self, written_ms: int) -> BeatLine:
        """Return the line without marks of a clock that is ahead.

        A mark more than ``AHEAD_MS`` after the instant at which the store took the line becomes that instant: its runs
        are sent again.
        """
        latest_ms = written_ms + AHEAD_MS
        said: list[Mapping[Any, int]] = [*self.marks.values(), *self.left.values(), self.odd]
        if max((max(marks.values(), default=0) for marks in said), default=0) <= latest_ms:
            return self

        def lowered(marks: Mapping[_Key, int]) -> dict[_Key, int]:
            return {key: written_ms if mark > latest_ms else mark for key, mark in marks.items()}

        return replace(
            self,
            marks={name: lowered(marks) for name, marks in self.marks.items()},
            left={name: lowered(marks) for name, marks in self.left.items()},
            odd=lowered(self.odd),
        )

    @classmethod
    def from_text(cls, text: str, beat_id: str) -> BeatLine:
        """Read a line of ``beat_id``; raises ``InvalidLine`` for anything that this release does not understand."""
        try:
            if len(text) > LINE_BYTES:
                raise InvalidLine(f"{len(text)} characters, expected at most {LINE_BYTES}")
            values = json.loads(text)
            _check(isinstance(values, dict), "object", values)
            _check(values.get("v") == VERSION, f"version {VERSION}", values.get("v"))
            _check(values.get("beat") == beat_id, "the id of its writer", values.get("beat"))
            return _read(values, beat_id)
        except (ValueError, RecursionError) as error:
            raise InvalidLine(f"line of beat {beat_id!r:.60} cannot be read: {error}") from None


def entry_hash(name: str, task: str, schedule: str) -> str:
    """Return the 16 hex digits by which beats recognise an entry that they share."""
    text = json.dumps([name, task, schedule])
    return blake2b(text.encode(), digest_size=8).hexdigest()


def entries_said(hashes: Collection[str]) -> tuple[frozenset[str] | None, str]:
    """Return ``entries`` and ``digest`` of a line for all the entries that a beat knows."""
    digest = blake2b("".join(sorted(hashes)).encode(), digest_size=16).hexdigest()
    return (frozenset(hashes) if len(hashes) <= ENTRIES_LISTED else None), digest


def covered(line: BeatLine, others: Iterable[BeatLine]) -> bool:
    """Return whether ``others`` have every mark of ``line`` or a later one, so that nothing is lost with it."""
    best: dict[tuple[str, int], int] = {}
    for other in others:
        for key, mark in _all_marks(other):
            best[key] = max(mark, best.get(key, mark))
    return all(key in best and best[key] >= mark for key, mark in _all_marks(line))


def _all_marks(line: BeatLine) -> Iterator[tuple[tuple[str, int], int]]:
    for said in (line.marks, line.left):
        for destination, marks in said.items():
            for shard, mark in marks.items():
                yield (destination, shard), mark


def mask_of(shards: Collection[int]) -> str:
    """Return a set of shards as a hexadecimal number."""
    return f"{sum(1 << shard for shard in set(shards)):x}"


def _grouped(marks: Mapping[int, int]) -> dict[str, int]:
    """Return mask → mark of at most ``GROUPS`` groups; each shard gets the lowest mark of its group.

    Groups are separated where the distance between neighbouring marks is greatest.
    """
    values = sorted(set(marks.values()))
    gaps = sorted(range(1, len(values)), key=lambda at: values[at] - values[at - 1], reverse=True)[: GROUPS - 1]
    lowest: dict[int, int] = {}
    for at, value in enumerate(values):
        lowest[value] = value if at == 0 or at in gaps else lowest[values[at - 1]]
    members: dict[int, list[int]] = {}
    for shard, mark in marks.items():
        members.setdefault(lowest[mark], []).append(shard)
    return {mask_of(shards): mark for mark, shards in members.items()}


def _read(values: Mapping[str, Any], beat_id: str) -> BeatLine:
    shards = _number(values, "shards", low=1, high=SHARDS_MAX)
    entries = values.get("entries")
    return BeatLine(
        beat_id=beat_id,
        number=_number(values, "n", low=0),
        standing=Standing(values.get("state")),
        order=_number(values, "order", low=0),
        shards=shards,
        own=_shards_of(values.get("own"), shards),
        able=frozenset(_texts(values.get("able"), 100)),
        marks={name: _groups(said, shards) for name, said in _object(values, "marks", 100)},
        left={name: _groups(said, shards) for name, said in _object(values, "left", 100)},
        odd={name: _mark(mark) for name, mark in _object(values, "odd", ENTRIES_LISTED)},
        entries=None if entries is None else frozenset(_texts(entries, ENTRIES_LISTED)),
        digest=_text(values.get("digest")),
        active=_number(values, "active", low=1),
        damped=_flag(values.get("damped")),
        offset_ms=_number(values, "offset", low=-_NUMBER_MAX),
        steps=_number(values, "steps", low=0),
        rolls=tuple(_texts(values.get("rolls"), 100)),
        release=_text(values.get("release")),
        account=dict(_object(values, "account", 100)),
    )


def _check(right: bool, expected: str, given: object) -> None:
    if not right:
        raise ValueError(f"expected {expected}, not {given!r:.60}")


def _number(values: Mapping[str, Any], name: str, *, low: int, high: int = _NUMBER_MAX) -> int:
    value = values.get(name)
    _check(type(value) is int and low <= value <= high, f"{name} as a number of {low} to {high}", value)
    return int(value)  # type: ignore[arg-type]  # checked above


def _mark(value: object) -> int:
    return _number({"mark": value}, "mark", low=-_NUMBER_MAX)


def _flag(value: object) -> bool:
    _check(isinstance(value, bool), "true or false", value)
    return bool(value)


def _text(value: object) -> str:
    _check(isinstance(value, str) and len(value) <= TEXT_CHARACTERS and value.isprintable(), "a short text", value)
    return str(value)


def _texts(value: object, limit: int) -> list[str]:
    _check(isinstance(value, list) and len(value) <= limit, f"a list of at most {limit} texts", value)
    return [_text(item) for item in value]  # type: ignore[attr-defined]  # checked above


def _object(values: Mapping[str, Any], name: str, limit: int) -> list[tuple[str, Any]]:
    value = values.get(name)
    _check(isinstance(value, dict) and len(value) <= limit, f"{name} as an object of at most {limit} fields", value)
    return [(_text(key), item) for key, item in value.items()]  # type: ignore[union-attr]  # checked above


def _shards_of(mask: object, shards: int) -> frozenset[int]:
    digits = isinstance(mask, str) and 0 < len(mask) <= SHARDS_MAX // 4 and set(mask) <= set("0123456789abcdef")
    _check(digits, f"a mask of {shards} shards", mask)
    bits = int(str(mask), 16)
    _check(bits < 1 << shards, f"a mask of {shards} shards", mask)
    return _shards_in(bits)


@lru_cache(maxsize=1_024)
def _shards_in(bits: int) -> frozenset[int]:
    """Return the places of the bits that are set; each second the same masks are read."""
    return frozenset(shard for shard, digit in enumerate(f"{bits:b}"[::-1]) if digit == "1")


def _groups(said: object, shards: int) -> dict[int, int]:
    found: dict[int, int] = {}
    for mask, value in _object({"groups": said}, "groups", SHARDS_MAX):
        mark = _mark(value)
        for shard in _shards_of(mask, shards):
            found[shard] = min(found.get(shard, mark), mark)
    return found
