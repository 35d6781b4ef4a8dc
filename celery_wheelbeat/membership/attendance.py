"""Attendance: who is here, judged by what the rolls have shown and by this process's monotonic clock.

A beat is gone if it has left, or if it is silent on every roll that can be read here. It is silent on a roll since its
counter changed there for the last time. The clock of the store only refines when that was, so a step of that clock
makes nobody gone; the clocks of other hosts are not compared at all. Pure: no I/O, ``now_s`` is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from celery_wheelbeat.membership.line import Standing, covered

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from celery_wheelbeat.membership.line import BeatLine

LONG_AGO_S: Final = float("-inf")
READABLE_BEATS: Final = 1.6
"""A roll can be read if the last good look was at most this many heartbeats ago."""
GAP_BEATS: Final = 2.5
"""After a longer gap between two looks, the silence of every beat on that roll begins again."""
GONE_BEATS: Final = 3.0
FORGET_S: Final = 60.0
"""The line of a beat that is gone is kept for this long."""
HASTE_S: Final = 0.2
"""Time between two looks while another beat is leaving, or while shards are announced."""
SHORTEST_S: Final = 0.05


class HeardLine(NamedTuple):
    """One line that a look found."""

    line: BeatLine
    counter: int
    age_s: float | None


class Look(NamedTuple):
    """A successful look at one roll."""

    roll: str
    written: BeatLine
    """The line of this beat that the look wrote before it read."""
    heard: Sequence[HeardLine]
    order: int
    now_ms: int | None
    """The clock of the store."""
    began_s: float
    ended_s: float
    offset_ms: int = 0
    """The clock of this host minus the clock of the store; 0 if the store has none."""


class Unheard(NamedTuple):
    """A look that failed."""

    roll: str
    reason: str


class Roster(NamedTuple):
    """Who is here."""

    live: Mapping[str, BeatLine]
    """The newest line of each live beat, by its id; without this one."""
    gone: Mapping[str, BeatLine]
    """The last line of each beat that is gone."""
    shown: Mapping[str, BeatLine]
    """Roll that can be read → the line of this beat that it showed the others at the last look."""


@dataclass(slots=True)
class _Seen:
    """One beat on one roll."""

    counter: int
    since_s: float
    """The counter has not changed since then, or since later."""


@dataclass(slots=True)
class _RollView:
    """What this process knows of one roll."""

    unbroken_since_s: float
    """First of the looks without a longer gap between them."""
    last_s: float
    written: BeatLine
    seen: dict[str, _Seen]
    present: frozenset[str]
    """Beats that the last look found."""


class Attendance:
    """What this beat has read. ``heartbeat_s``: interval between two looks."""

    def __init__(self, heartbeat_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self._gone_s = GONE_BEATS * heartbeat_s
        self._rolls: dict[str, _RollView] = {}
        self._lines: dict[str, BeatLine] = {}
        self._gone_since_s: dict[str, float] = {}

    @property
    def last_look_s(self) -> float:
        """Instant of the last good look at any roll; minus infinity before the first one."""
        return max((view.last_s for view in self._rolls.values()), default=LONG_AGO_S)

    def hears(self, now_s: float) -> bool:
        """Return whether a roll was read within the time after which a silent beat is gone.

        A beat that does not hear says that it is not able: it would be named for shards that it cannot know of.
        """
        return now_s - self.last_look_s <= self._gone_s

    def note(self, look: Look) -> None:
        """Take in what a look has found."""
        now_s = look.ended_s
        view = self._rolls.get(look.roll)
        if view is None:
            view = self._rolls[look.roll] = _RollView(now_s, LONG_AGO_S, look.written, {}, frozenset())
        elif now_s - view.last_s > GAP_BEATS * self._heartbeat_s:
            view.unbroken_since_s = now_s
        for line, counter, age_s in look.heard:
            seen = view.seen.get(line.beat_id)
            if seen is None or seen.counter != counter:
                view.seen[line.beat_id] = _Seen(counter, self._written_s(view, now_s, age_s))
            known = self._lines.get(line.beat_id)
            if known is None or line.number >= known.number:
                self._lines[line.beat_id] = line
        view.last_s, view.written = now_s, look.written
        view.present = frozenset(heard.line.beat_id for heard in look.heard)
        self._drop_forgotten(now_s)

    def _written_s(self, view: _RollView, now_s: float, age_s: float | None) -> float:
        """Return when a line was written whose counter is new here: not before the last look, whatever its age."""
        if age_s is None:
            return now_s
        if view.last_s == LONG_AGO_S and age_s > self._gone_s + self._heartbeat_s:
            return LONG_AGO_S  # at the first look, only the store can tell that a beat ended long ago
        return max(view.last_s, now_s - min(max(0.0, age_s), self._gone_s - 0.001))

    def roster(self, now_s: float) -> Roster:
        """Return who is here and who is gone."""
        live, gone = {}, {}
        readable = self._readable(now_s)
        for beat_id, line in self._lines.items():
            silent_s = _silent_s(beat_id, readable.values(), now_s)
            if line.standing is Standing.LEFT or (silent_s is not None and silent_s >= self._gone_s):
                gone[beat_id] = line
                self._gone_since_s.setdefault(beat_id, now_s)
            else:
                live[beat_id] = line
                self._gone_since_s.pop(beat_id, None)
        return Roster(live, gone, {name: view.written for name, view in readable.items()})

    def next_look_s(self, now_s: float, *, announced: bool) -> float:
        """Return the seconds until the next look at every roll.

        Sooner than a heartbeat if the time of a silent beat is up before, while another beat leaves, and while this
        one has ``announced`` shards that it has not taken.
        """
        rest_s = HASTE_S if announced else self._heartbeat_s
        readable = self._readable(now_s).values()
        for beat_id, line in self._lines.items():
            silent_s = _silent_s(beat_id, readable, now_s)
            if line.standing is Standing.LEFT or silent_s is None or silent_s >= self._gone_s:
                continue
            rest_s = min(rest_s, max(SHORTEST_S, self._gone_s - silent_s + 0.005))
            if line.standing is Standing.LEAVING:
                rest_s = min(rest_s, HASTE_S)
        return rest_s

    def forgettable(self, me: BeatLine, now_s: float) -> frozenset[str]:
        """Return the beats, gone for ``FORGET_S``, whose lines may be deleted: other lines have all their marks."""
        living = [me, *(line for beat_id, line in self._lines.items() if beat_id not in self._gone_since_s)]
        return frozenset(
            beat_id
            for beat_id, since_s in self._gone_since_s.items()
            if now_s - since_s >= FORGET_S and covered(self._lines[beat_id], living)
        )

    def _drop_forgotten(self, now_s: float) -> None:
        present = frozenset[str]().union(*(view.present for view in self._rolls.values()))
        for beat_id, since_s in list(self._gone_since_s.items()):
            if beat_id not in present and now_s - since_s >= FORGET_S:
                del self._gone_since_s[beat_id], self._lines[beat_id]
                for view in self._rolls.values():
                    view.seen.pop(beat_id, None)

    def _readable(self, now_s: float) -> dict[str, _RollView]:
        longest_s = READABLE_BEATS * self._heartbeat_s
        return {name: view for name, view in self._rolls.items() if now_s - view.last_s <= longest_s}


def _silent_s(beat_id: str, readable: Iterable[_RollView], now_s: float) -> float | None:
    """Return how long a beat has been silent on all rolls that can be read; None if there are none."""
    silences = []
    for view in readable:
        seen = view.seen.get(beat_id)
        if seen is not None and seen.since_s == LONG_AGO_S:
            silences.append(float("inf"))
        else:
            silences.append(now_s - max(view.unbroken_since_s, seen.since_s if seen else LONG_AGO_S))
    return min(silences, default=None)
