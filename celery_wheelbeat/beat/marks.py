"""Marks: the instant up to which every run of a destination is confirmed or counted as skipped.

A start treats fire times after the mark as missed. A mark may be too early (runs are offered again with the same ids);
it must never be too late (runs would be lost). Pure: the I/O thread stores marks.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from celery_wheelbeat.engine.sharing.shard_marks import ShardMarks
from celery_wheelbeat.errors import WheelbeatError
from celery_wheelbeat.jobs.definitions import EntryMark
from celery_wheelbeat.later.open_seconds import Resume
from celery_wheelbeat.schedules.kinds import ALWAYS_MS, NEVER_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from celery_wheelbeat.schedules.kinds import Int64s

VERSION: Final = 1
AHEAD_MS: Final = 5_000
"""A mark further ahead of the clock than this was written under a wrong clock."""
STEPS_MAX: Final = 1_000_000
"""No clock was set back more often."""
OUTDATED_S: Final = 60.0
"""A beat that was last seen so much earlier than another one had ended before the other began to send."""


logger = logging.getLogger("celery.beat")


class InvalidMark(WheelbeatError, ValueError):
    """A stored mark that cannot be read."""


@dataclass(frozen=True, slots=True)
class MarkDocument:
    """The stored document of one destination."""

    mark_ms: int
    """True for every shard, so at most the earliest of ``shards``; all that earlier releases stored."""
    steps: int = 0
    """Number of backward clock steps of more than 5 s; part of the ids of re-lived interval runs."""
    relived_until_ms: int = 0
    """Latest fire time handed out before the clock was set back; 0 = never set back."""
    settled_until_ms: int = 0
    """Crons and single runs up to here are not lived again, see ``Relived.settled_ms``."""
    held_ms: int = 0
    """The time without a step forward of the clock that has not held yet; 0 = there is none."""
    reached_ms: int = 0
    """How far runs were handed out during that step; 0 = there is none."""
    entries: Mapping[str, EntryMark] = field(default_factory=dict)
    later: Resume | None = None
    """Where the reader of one-off runs goes on; None if it never read any."""
    shards: ShardMarks | None = None
    """The mark of each shard; None in a document of an earlier release, whose ``mark_ms`` holds for all shards."""
    age_s: float = 0.0
    """Seconds since its beat was last seen, by the clock of the database; not stored."""

    def to_json(self) -> dict[str, Any]:
        """Return the document as plain values."""
        return {
            "version": VERSION,
            "mark_ms": self.mark_ms,
            "steps": self.steps,
            "relived_until_ms": self.relived_until_ms,
            "settled_until_ms": self.settled_until_ms,
            **({"held_ms": self.held_ms, "reached_ms": self.reached_ms} if self.held_ms else {}),
            "entries": {name: list(entry) for name, entry in self.entries.items()},
            **({} if self.later is None else {"later": self.later._asdict()}),
            **({} if self.shards is None else {"shards": self.shards.encoded()}),
        }

    @property
    def by_shard(self) -> ShardMarks:
        """The mark of each shard; a single value if it holds for all of them."""
        return ShardMarks.uniform(1, self.mark_ms) if self.shards is None else self.shards

    @property
    def latest_ms(self) -> int:
        """The latest mark."""
        return max(self.mark_ms, self.by_shard.latest_ms or self.mark_ms)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> MarkDocument:
        """Read what ``to_json`` returned; raises ``InvalidMark`` for anything else, a newer version included."""
        try:
            version = int(stored["version"])
            if version > VERSION:
                raise InvalidMark(f"mark of version {version}: this release reads up to {VERSION}, use a newer one")
            return cls(
                mark_ms=_instant(stored["mark_ms"]),
                steps=_count(stored.get("steps", 0)),
                relived_until_ms=_instant(stored.get("relived_until_ms", 0)),
                settled_until_ms=_instant(stored.get("settled_until_ms", stored.get("relived_until_ms", 0))),
                held_ms=_instant(stored.get("held_ms", 0)),
                reached_ms=_instant(stored.get("reached_ms", 0)),
                entries={
                    str(name): EntryMark(str(definition_hash), _instant(effective_from_ms))
                    for name, (definition_hash, effective_from_ms) in dict(stored.get("entries", {})).items()
                },
                later=Resume.read(dict(stored.get("later") or {})),
                shards=ShardMarks.read(stored["shards"]) if stored.get("shards") else None,
                age_s=float(stored.get("age_s", 0.0)),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            if isinstance(error, InvalidMark):
                raise
            raise InvalidMark(f"mark {stored!r:.200} cannot be read ({error!r})") from None


class Chosen(NamedTuple):
    """The mark that a start uses."""

    document: MarkDocument | None
    """None = first start: nothing was missed."""
    ignored: list[MarkDocument]
    """Ignored marks, more than 5 s later than the clock, for the log."""


class KnownMarks(NamedTuple):
    """What earlier processes stored."""

    documents: dict[str, MarkDocument]
    """The latest usable mark per destination; destinations without one are left out."""
    steps: int
    """Greatest number of clock steps, also in marks that cannot be used: each number is used once."""


def choose(documents: Iterable[MarkDocument], now_ms: int) -> Chosen:
    """Return the latest of ``documents`` with the latest mark of each shard, without those 5 s ahead of ``now_ms``.

    Marks of beats that ended before the beat of such a mark are left out, too: the later beat has sent what was due
    after them. The number of clock steps is the maximum over all documents.
    """
    every = list(documents)
    ignored = [document for document in every if document.latest_ms > now_ms + AHEAD_MS]
    oldest_s = min((document.age_s for document in ignored), default=float("inf")) + OUTDATED_S
    usable = [document for document in every if document.latest_ms <= now_ms + AHEAD_MS and document.age_s < oldest_s]
    if not usable:
        return Chosen(None, ignored)
    latest = max(usable, key=lambda document: document.latest_ms)
    shards = reduce(ShardMarks.merged, (document.by_shard for document in usable))
    steps = max(document.steps for document in every)
    chosen = replace(
        latest,
        mark_ms=latest.mark_ms if shards.lowest_ms is None else shards.lowest_ms,
        shards=None if len(shards) == 1 else shards,
        steps=steps,
        relived_until_ms=max(document.relived_until_ms for document in usable),
        settled_until_ms=max(document.settled_until_ms for document in usable),
        age_s=0.0,
    )
    return Chosen(chosen, ignored)


class Mark:
    """The mark of one destination while a beat runs."""

    def __init__(self, mark_ms: int | None = None) -> None:
        self.mark_ms = mark_ms
        self.shards: ShardMarks | None = None
        """The mark of each shard, as of the last ``move_shards``; none is earlier than ``mark_ms``."""
        self.settled_until_ms = 0
        """Every run of a cron and every single run up to here is confirmed or counted; see ``step_back``."""
        self._settles_until_ms = 0

    def move(
        self,
        cursor_ms: int,
        *,
        oldest_fire_ms: int | None = None,
        ask_ms: int | None = None,
        limit_ms: int | None = None,
    ) -> int:
        """Move the mark forward as far as allowed and return it.

        ``cursor_ms``: the engine has passed every slot up to here. ``oldest_fire_ms``: earliest run in the backlog.
        ``ask_ms``: earliest instant at which a job of the poll lane is asked next. ``limit_ms``: see ``clock.Reading``.
        """
        mark_ms = cursor_ms
        for first_open_ms in (oldest_fire_ms, ask_ms):
            if first_open_ms is not None:
                mark_ms = min(mark_ms, first_open_ms - 1)
        if limit_ms is not None:
            mark_ms = min(mark_ms, limit_ms)
        self.mark_ms = mark_ms if self.mark_ms is None else max(self.mark_ms, mark_ms)
        settled_ms = self._settles_until_ms if oldest_fire_ms is None else oldest_fire_ms - 1
        self.settled_until_ms = max(self.settled_until_ms, min(self._settles_until_ms, settled_ms))
        return self.mark_ms

    def move_shards(self, passed_ms: int, oldest_ms: Int64s) -> ShardMarks | None:
        """Move the mark of each shard up to ``passed_ms`` or its oldest open run; None without a mark."""
        if self.mark_ms is None:
            return None
        before = self.shards or ShardMarks.uniform(len(oldest_ms), self.mark_ms)
        self.shards = before.at_least(self.mark_ms).moved(passed_ms, oldest_ms)
        return self.shards

    def remember(self, settled_until_ms: int) -> None:
        """Take over the value of an earlier process."""
        self.settled_until_ms = self._settles_until_ms = settled_until_ms

    def step_back(self, now_ms: int, settled_ms: int) -> None:
        """Set the mark for a clock that was set back; later marks are instants of the new time.

        ``settled_ms``: crons and single runs up to here do not fire again. What still waits of them would be lost with
        the process, so the stored value follows the runs that wait.
        """
        self._settles_until_ms = max(self._settles_until_ms, settled_ms)
        if self.mark_ms is not None:
            self.settled_until_ms = max(self.settled_until_ms, min(self.mark_ms, settled_ms))
            self.mark_ms = min(self.mark_ms, now_ms)
        if self.shards is not None:
            self.shards = self.shards.capped(now_ms)


def known_marks(stored: Mapping[str, Sequence[Mapping[str, Any]]], now_ms: int) -> KnownMarks:
    """Choose from all stored documents, per destination; logs those that cannot be used."""
    known = {}
    steps = 0
    for destination, documents in stored.items():
        readable = []
        for values in documents:
            steps = max(steps, _steps_of(values))
            try:
                readable.append(MarkDocument.from_json(values))
            except InvalidMark as error:
                logger.warning("beat: A mark of %s cannot be used: %s", destination, error)
        chosen = choose(readable, now_ms)
        if chosen.ignored:
            logger.warning("beat: %d marks of %s lie ahead of the clock: ignored", len(chosen.ignored), destination)
        if chosen.document is not None:
            known[destination] = chosen.document
    return KnownMarks(known, steps)


def _steps_of(values: Mapping[str, Any]) -> int:
    """Return the number of clock steps of any document, even of one that cannot be read otherwise."""
    try:
        return _count(values.get("steps", 0))
    except (TypeError, ValueError, OverflowError):
        return 0


def _instant(value: Any) -> int:
    """Return a stored instant in ms; raises ``ValueError`` for one that no clock shows."""
    instant_ms = int(value)
    if not ALWAYS_MS < instant_ms < NEVER_MS:
        raise ValueError(f"{value!r:.40} is not an instant in ms")
    return instant_ms


def _count(value: Any) -> int:
    """Return a stored number of clock steps; raises ``ValueError`` for another number."""
    steps = int(value)
    if not 0 <= steps <= STEPS_MAX:
        raise ValueError(f"{value!r:.40} is not a number of clock steps")
    return steps


class NeededRows:
    """The marks of the rows that were seen so far, by namespace and destination."""

    def __init__(self) -> None:
        self._covered: dict[tuple[str, str], ShardMarks] = {}
        self._seen: set[str] = set()

    def takes(self, namespace: str, marks: str) -> bool:
        """Return whether a row is needed; the latest row of a namespace, which comes first, always is."""
        needed = namespace not in self._seen
        self._seen.add(namespace)
        for destination, document in _documents(marks).items():
            key, own = (namespace, destination), document.by_shard
            covered = self._covered.get(key)
            needed |= covered is None or not covered.covers(own)
            self._covered[key] = own if covered is None else covered.merged(own)
        return needed


def _documents(marks: str) -> dict[str, MarkDocument]:
    """Return what can be read of the marks of one row."""
    try:
        stored = json.loads(marks)
        return {str(name): MarkDocument.from_json(values) for name, values in stored.items()}
    except (InvalidMark, ValueError, AttributeError, RecursionError):
        return {}
