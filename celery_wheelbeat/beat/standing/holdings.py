"""The shards that one beat holds, and the marks of all shards.

Invariant: a mark is true. Every run of its shard up to it is confirmed or counted as skipped, here or by another beat.
A shard is given up only with a mark that is said in ``left`` until another beat says a later one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from celery_wheelbeat.dispatch.pending import STEP_SHIFT
from celery_wheelbeat.engine.sharing.shard_marks import UNKNOWN_MS, ShardMarks
from celery_wheelbeat.schedules.kinds import NEVER_MS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from numpy.typing import NDArray

    from celery_wheelbeat.dispatch.dispatcher import Dispatcher
    from celery_wheelbeat.engine.engine import Engine
    from celery_wheelbeat.jobs.definitions import DueBatch
    from celery_wheelbeat.membership.line import BeatLine
    from celery_wheelbeat.schedules.kinds import Int64s

logger = logging.getLogger("celery.beat")


class Holdings:
    """Owned by ``Member``. Shards are numbers; sets of them are replaced, not changed."""

    def __init__(self, engine: Engine, dispatcher: Dispatcher) -> None:
        self.own: frozenset[int] = frozenset()
        """Shards that this beat sends, frozen ones included."""
        self.announced: frozenset[int] = frozenset()
        self.frozen: Mapping[int, float] = {}
        """Frozen shard → monotonic instant since when."""
        self.left: frozenset[int] = frozenset()
        """Shards let go whose mark no other beat has said yet."""
        self.odd: dict[str, int] = {}
        """Hash of an entry that is sent outside of the share → its job id."""
        self.odd_marks: dict[str, int] = {}
        """Hash of an entry that is sent outside of the share → its mark."""
        self.limit_ms = UNKNOWN_MS
        """No mark moves beyond this instant, as of the last tick; ``UNKNOWN_MS`` while not everything is loaded."""
        self._given_up: frozenset[int] = frozenset()
        """Shards let go of which runs may still be on their way."""
        self._engine = engine
        self._dispatcher = dispatcher
        self.shards = engine.config.shards
        self.marks_ms: Int64s = np.full(self.shards, UNKNOWN_MS)
        self._stopped_ms: Int64s = np.full(self.shards, NEVER_MS)
        """By shard: the cursor when it was frozen."""

    def remember(self, marks: ShardMarks) -> None:
        """Take over marks that earlier beats have stored."""
        self.marks_ms = np.maximum(self.marks_ms, marks.ms)

    def follow_all(self) -> None:
        """Send nothing yet."""
        self._engine.follow(np.ones(self.shards, np.bool_))

    @property
    def lowest_ms(self) -> int | None:
        """The earliest mark of all shards; None while one has none."""
        lowest_ms = int(self.marks_ms.min())
        return None if lowest_ms == UNKNOWN_MS else lowest_ms

    def marks_until(self, limit_ms: int) -> ShardMarks | None:
        """Return the marks, none later than ``limit_ms``; None while no shard has one."""
        marks = ShardMarks(self.marks_ms)
        return marks.capped(limit_ms) if marks.known.any() else None

    def said(self, shards: Iterable[int]) -> dict[int, int]:
        """Return the known marks of ``shards``, for the line."""
        return {shard: mark for shard in shards if (mark := int(self.marks_ms[shard])) != UNKNOWN_MS}

    def hear(self, lines: Collection[BeatLine], destination: str) -> None:
        """Take over the marks that other beats say."""
        heard = np.full(self.shards, UNKNOWN_MS)
        for line in lines:
            for said in (line.marks, line.left) if line.shards == self.shards else ():
                marks = said.get(destination, {})
                if marks:
                    shards = np.fromiter(marks.keys(), np.intp, len(marks))
                    heard[shards] = np.maximum(heard[shards], np.fromiter(marks.values(), np.int64, len(marks)))
        self.left = frozenset(shard for shard in self.left if heard[shard] < self.marks_ms[shard])
        self.marks_ms = np.maximum(self.marks_ms, heard)

    def step_back(self, cursor_ms: int) -> None:
        """Lower the marks of what this beat sends: its clock was set back to ``cursor_ms``."""
        own = self._mask(self.own)
        self.marks_ms = np.where(own, np.minimum(self.marks_ms, cursor_ms), self.marks_ms)
        self.odd_marks = {one: min(mark, cursor_ms) for one, mark in self.odd_marks.items()}

    def forget_sent(self) -> None:
        """Forget the kept runs that the marks have passed, and the oldest beyond the bound."""
        self._engine.forget_followed(self.marks_ms)

    def move_marks(self) -> None:
        """Move the marks of what this beat sends forward."""
        own = self._mask(self.own)
        oldest_ms = self._dispatcher.oldest_by_shard(self.shards)
        allowed = np.minimum(oldest_ms - 1, self._stopped_ms)
        until_ms = min(self.limit_ms, self._engine.cursor_ms)
        allowed = np.minimum(allowed, until_ms)
        self.marks_ms = np.where(own, np.maximum(self.marks_ms, allowed), self.marks_ms)
        for one, job_id in self.odd.items():
            mark_ms = min(until_ms, int(oldest_ms[job_id & (self.shards - 1)]) - 1)
            self.odd_marks[one] = max(self.odd_marks[one], mark_ms)

    def take(self, shards: Collection[int]) -> list[DueBatch]:
        """Begin to send ``shards`` from their marks on; returns the runs that are owed."""
        where = self._mask(shards)
        due = self._engine.take(where, self._floor(where))
        self.own |= frozenset(shards)
        self.announced -= self.own
        self.left -= self.own
        self._given_up -= self.own
        return due

    def set_apart(self, marks_ms: Mapping[int, int]) -> None:
        """Follow these jobs (job id → mark) by marks of their own."""
        self._engine.share.followed.set_apart(marks_ms)

    def send_outside(self, wanted: Mapping[str, int], apart_ms: Mapping[str, int]) -> list[DueBatch]:
        """Send the entries of ``wanted`` (hash → job id), whose owners do not know them, and no others outside.

        ``apart_ms``: hash of each entry that its owner does not know → its mark. Returns the runs that are owed.
        """
        share = self._engine.share
        new = {one: job_id for one, job_id in wanted.items() if one not in self.odd}
        if new or len(wanted) < len(self.odd):
            share.outside = np.array(sorted(wanted.values()), np.int64)
            self._engine.poll_lane.divide(ask_ms=self._engine.cursor_ms + 1)
        self.odd = dict(wanted)
        known = {one: apart_ms.get(one, UNKNOWN_MS) for one in wanted}
        self.odd_marks = {one: max(self.odd_marks.get(one, mark), mark) for one, mark in known.items()}
        runs = share.followed.take_jobs(np.array(sorted(new.values()), np.int64)) if new else None
        return [] if runs is None else self._engine.misfires.offer_kept(self._engine.shards, runs)

    def freeze(self, shards: Collection[int], now_s: float) -> None:
        """Keep new runs of ``shards``; those that wait are still sent."""
        where = self._mask(shards)
        self._engine.follow(where)
        self._stopped_ms = np.where(where, self._engine.cursor_ms, self._stopped_ms)
        self.frozen = {**self.frozen, **dict.fromkeys(shards, now_s)}

    def thaw(self, shards: Collection[int]) -> list[DueBatch]:
        """Send frozen shards again; returns their runs since they were frozen.

        While not everything is loaded, since their marks: what was loaded meanwhile has missed runs from before.
        """
        where = self._mask(shards)
        floor_ms = self._floor(where) if self.limit_ms == UNKNOWN_MS else np.where(where, self._stopped_ms, 0)
        self._stopped_ms = np.where(where, NEVER_MS, self._stopped_ms)
        self.frozen = {shard: since_s for shard, since_s in self.frozen.items() if shard not in shards}
        return self._engine.take(where, floor_ms)

    def drained(self) -> frozenset[int]:
        """Return the frozen shards of which nothing waits and nothing is on its way."""
        if not self.frozen:
            return frozenset()
        oldest_ms = self._dispatcher.oldest_by_shard(self.shards)
        return frozenset(shard for shard in self.frozen if oldest_ms[shard] == NEVER_MS)

    def let_go(self, shards: Collection[int]) -> int:
        """Stop to send ``shards`` at once; returns the number of waiting runs that are given away.

        Their marks stay before every run that is not settled.
        """
        self.freeze([shard for shard in shards if shard not in self.frozen], 0.0)
        oldest_ms = self._dispatcher.oldest_by_shard(self.shards)
        where = self._mask(shards)
        allowed = np.minimum(np.minimum(self._stopped_ms, self.limit_ms), oldest_ms - 1)
        final_ms = np.maximum(self.marks_ms, allowed)
        self.marks_ms = np.where(where, final_ms, self.marks_ms)
        gone = frozenset(shards)
        self._stopped_ms = np.where(where, NEVER_MS, self._stopped_ms)
        self.frozen = {shard: since_s for shard, since_s in self.frozen.items() if shard not in gone}
        self.own -= gone
        self.left |= gone
        self._given_up |= gone
        return self.give_away()

    def give_up(self) -> None:
        """Stop to say that this beat sends anything, with the marks as they are."""
        self.left |= self.own
        self.own = frozenset()

    def give_away(self) -> int:
        """Give away what has come back from the publishers of shards let go; returns the number of runs."""
        if not self._given_up:
            return 0
        runs = self._dispatcher.take_out(self._mask(self._given_up))
        self._engine.give_away(runs.ids, runs.fire_ms, runs.tag >> STEP_SHIFT)
        oldest_ms = self._dispatcher.oldest_by_shard(self.shards)
        self._given_up = frozenset(shard for shard in self._given_up if oldest_ms[shard] != NEVER_MS)
        return len(runs.ids)

    def _floor(self, where: NDArray[np.bool_]) -> Int64s:
        """Return the marks to send from. A shard without one had no beat yet, unless others have had one."""
        unknown = where & (self.marks_ms == UNKNOWN_MS)
        if not unknown.any():
            return self.marks_ms
        known = self.marks_ms[self.marks_ms != UNKNOWN_MS]
        if len(known):
            logger.error("beat: %d shards have no mark; the earliest mark of the others is used", unknown.sum())
        floor_ms = int(known.min()) if len(known) else self._engine.cursor_ms
        return np.where(unknown, floor_ms, self.marks_ms)

    def _mask(self, shards: Collection[int]) -> NDArray[np.bool_]:
        mask = np.zeros(self.shards, np.bool_)
        mask[list(shards)] = True
        return mask
