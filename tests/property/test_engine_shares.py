"""Two engines that divide the shards, with takes between them, hand out what one engine hands out, each run once."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.engine.definitions import Job, changes_of
from support.engine.drawn_jobs import FALL_BACK_MS, IDS, SPRING_FORWARD_MS, jobs
from support.engine.machine_settings import machine_settings

from celery_wheelbeat.engine import EngineConfig
from celery_wheelbeat.engine.engine import Engine
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.jobs.definitions import Route
from celery_wheelbeat.schedules.cron import CronTable

SHARDS = 4
MASKS = st.lists(st.booleans(), min_size=SHARDS, max_size=SHARDS).map(lambda one: np.array(one, np.bool_))
CONFIG = EngineConfig(shards=SHARDS, window_ms=60_000, stall_limit_ms=10**9, runs_per_advance=50)


@dataclass
class OneBeat:
    """An engine, the runs that it has to send, and those that it has sent."""

    engine: Engine
    waiting: list[tuple[int, int]] = field(default_factory=list)
    sent: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def at(cls, now_ms: int, crons: CronTable) -> OneBeat:
        """A beat without jobs that sends everything."""
        engine = Engine(CONFIG, crons, Ledger())
        engine.routes.intern(Route("probe"))
        engine.start(now_ms)
        return cls(engine)

    def queue(self, due: list) -> None:
        """Let due runs wait."""
        for batch in due:
            assert self.engine.share.mask[batch.shard]
            self.waiting += zip(batch.ids.tolist(), batch.fire_ms.tolist(), strict=True)

    def advance(self, now_ms: int) -> None:
        """Let time pass."""
        self.queue(self.engine.advance(now_ms))
        while not self.engine.caught_up(now_ms):
            self.queue(self.engine.advance(now_ms))


class SharesOracle(RuleBasedStateMachine):
    """One engine is the oracle of two that get the same changes."""

    def __init__(self) -> None:
        super().__init__()
        self.crons = CronTable()

    @initialize(
        now_ms=st.sampled_from([SPRING_FORWARD_MS, FALL_BACK_MS, 1_700_000_000_400]), first=st.data(), mine=MASKS
    )
    def begin(self, now_ms: int, first: st.DataObject, mine: np.ndarray) -> None:
        """Start all three with the same jobs."""
        self.now_ms = now_ms
        self.alone, self.one, self.other = self.beats = [OneBeat.at(now_ms, self.crons) for _ in range(3)]
        self.one.engine.follow(~mine)
        self.other.engine.follow(mine)
        self.marks_ms = np.full(SHARDS, self.one.engine.cursor_ms)
        self.edit(first, 6)

    @rule(data=st.data(), count=st.integers(1, 4))
    def edit(self, data: st.DataObject, count: int) -> None:
        """Insert or replace jobs."""
        drawn: dict[int, Job] = {job.id: job for job in (data.draw(jobs(self.now_ms)) for _ in range(count))}
        for beat in self.beats:
            beat.engine.apply(changes_of(self.crons, *drawn.values()))

    @rule(ids=st.sets(IDS, min_size=1, max_size=6))
    def delete(self, ids: set[int]) -> None:
        """Delete jobs."""
        for beat in self.beats:
            beat.engine.apply(changes_of(self.crons, deleted=ids))

    @rule(ms=st.sampled_from([100, 999, 1_000, 2_500, 20_000, 61_000]))
    def advance(self, ms: int) -> None:
        """Let time pass."""
        self.now_ms += ms
        for beat in self.beats:
            beat.advance(self.now_ms)

    @rule(shown=st.booleans())
    def send(self, shown: bool) -> None:
        """Send what waits; ``shown``: the marks that follow from it reach the other beat."""
        for beat in (self.one, self.other):
            self.confirm(beat, beat.waiting)
            beat.waiting = []
        self.move_marks(shown=shown)

    def confirm(self, beat: OneBeat, runs: list[tuple[int, int]]) -> None:
        """Count runs as sent; one-time jobs are finished by that, in every beat."""
        beat.sent += runs
        beat.engine.ledger.confirm(len(runs))
        ids, fires = np.array(runs, np.int64).reshape(-1, 2).T
        finished = ids[beat.engine.shards.once_of(ids) == fires]
        for every in self.beats:
            every.engine.finish(finished)

    def move_marks(self, *, shown: bool) -> None:
        """Compute the marks from what waits; ``shown``: followers forget what these have passed."""
        for beat in (self.one, self.other):
            marks_ms = np.full(SHARDS, beat.engine.cursor_ms)
            ids, fires = np.array(beat.waiting, np.int64).reshape(-1, 2).T
            np.minimum.at(marks_ms, ids & (SHARDS - 1), fires - 1)
            owned = beat.engine.share.mask
            self.marks_ms[owned] = np.maximum(self.marks_ms, marks_ms)[owned]
        for beat in (self.one, self.other) if shown else ():
            beat.engine.forget_followed(np.where(beat.engine.share.mask, 0, self.marks_ms))

    @rule(where=MASKS, swap=st.booleans(), drained=st.booleans())
    def take(self, where: np.ndarray, swap: bool, drained: bool) -> None:
        """Shards change their owner, before or after what waits of them is sent."""
        giver, taker = (self.other, self.one) if swap else (self.one, self.other)
        where = where & giver.engine.share.mask
        giver.engine.follow(where)
        moved = [run for run in giver.waiting if where[run[0] & (SHARDS - 1)]]
        sent = [run for run in moved if drained or run[1] <= self.marks_ms[run[0] & (SHARDS - 1)]]
        giver.waiting = [run for run in giver.waiting if run not in moved]
        self.confirm(giver, sent)
        given = np.array([run for run in moved if run not in sent], np.int64).reshape(-1, 2).T
        giver.engine.ledger.hand_on(len(given[0]))
        giver.engine.give_away(*given, np.zeros(len(given[0]), np.int32))
        floor_ms = np.full(SHARDS, giver.engine.cursor_ms)
        np.minimum.at(floor_ms, given[0] & (SHARDS - 1), given[1] - 1)
        self.marks_ms[where] = np.maximum(self.marks_ms, floor_ms)[where]
        taker.queue(taker.engine.take(where, self.marks_ms))
        self.advance(0)

    @rule(number=st.integers(0, SHARDS - 1))
    def sweep(self, number: int) -> None:
        """The watchdog finds nothing."""
        for beat in self.beats:
            assert not beat.engine.sweep(number).counts

    @precondition(lambda self: hasattr(self, "beats"))
    @invariant()
    def same_runs(self) -> None:
        """Every run of the oracle is with one of the two, once, or skipped because its job is gone."""
        expected = {*self.alone.waiting}
        found = [*self.one.sent, *self.one.waiting, *self.other.sent, *self.other.waiting]
        assert len(found) == len({*found})
        assert {*found} <= expected
        skipped = sum(beat.engine.ledger.skipped.total() for beat in (self.one, self.other))
        assert len(expected) - len(found) == skipped

    @precondition(lambda self: hasattr(self, "beats"))
    @invariant()
    def same_account(self) -> None:
        """Each identity holds; what is given away is expected again by the taker, and everything is expected once."""
        for beat in (self.one, self.other):
            assert beat.engine.ledger.difference(len(beat.waiting)) == 0
        ledgers = [beat.engine.ledger for beat in (self.one, self.other)]
        answered = sum(ledger.expected - ledger.handed_on for ledger in ledgers)
        assert answered == self.alone.engine.ledger.expected


@pytest.mark.promise("every-due-run-is-accounted-for")
class TestShares(SharesOracle.TestCase):
    """What the machine does, for a few examples."""

    settings = machine_settings(40)


@pytest.mark.promise("every-due-run-is-accounted-for")
@pytest.mark.soak
@pytest.mark.timeout(3_600)
class TestSharesForLong(SharesOracle.TestCase):
    """The same, for as many examples as ``WHEELBEAT_SOAK_EXAMPLES`` says."""

    settings = machine_settings(int(os.environ.get("WHEELBEAT_SOAK_EXAMPLES", "5000")))
