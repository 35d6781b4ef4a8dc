"""The engine against brute force: whatever is done to both, they hand out the same runs and keep the same account."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.engine.definitions import Job, batch_of, changes_of
from support.engine.drawn_jobs import FALL_BACK_MS, IDS, SPRING_FORWARD_MS, jobs
from support.engine.machine_settings import machine_settings
from support.engine.model import EngineModel, OfferedRun

from celery_wheelbeat.engine import EngineConfig
from celery_wheelbeat.engine.engine import Engine
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.engine.packing import DEAD
from celery_wheelbeat.engine.shards import Relived
from celery_wheelbeat.jobs.definitions import Route
from celery_wheelbeat.schedules.cron import CronTable
from celery_wheelbeat.schedules.kinds import NEVER_MS


class EngineOracle(RuleBasedStateMachine):
    """Windows of one minute and two shards, so that promotion, staleness and crowding happen all the time."""

    def __init__(self) -> None:
        super().__init__()
        self.crons = CronTable()
        self.step = 0
        self.pending = 0

    @initialize(
        now_ms=st.sampled_from([SPRING_FORWARD_MS, FALL_BACK_MS, 1_700_000_000_400]),
        first=st.data(),
        deadline_ms=st.sampled_from([None, 90_000]),
        runs_per_advance=st.sampled_from([5, 1_000_000]),
    )
    def begin(self, now_ms: int, first: st.DataObject, deadline_ms: int | None, runs_per_advance: int) -> None:
        """Start an engine with a few jobs."""
        self.config = EngineConfig(
            shards=2,
            window_ms=60_000,
            stall_limit_ms=120_000,
            backlog_max=1_500,
            misfire_gap_ms=300_000,
            all_max=150,
            starting_deadline_ms=deadline_ms,
            runs_per_advance=runs_per_advance,
        )
        self.now_ms = now_ms
        self.model = EngineModel(self.config, now_ms // 1000 * 1000)
        self.new_engine()
        self.edit(first, 4)

    def new_engine(self) -> None:
        """Replace the engine, as a restart does."""
        self.ledger = Ledger()
        self.engine = Engine(self.config, self.crons, self.ledger)
        self.engine.routes.intern(Route("probe"))
        self.engine.start(self.now_ms, Relived(self.model.relived_until_ms, self.step, self.model.settled_until_ms))
        self.pending = 0

    def compare(self, due: list, expected: list[OfferedRun]) -> None:
        """Compare what came out of the engine with what the model says."""
        found = []
        for batch in due:
            assert (batch.fire_ms[1:] >= batch.fire_ms[:-1]).all()
            columns = self.engine.shards[batch.shard].table.columns
            assert (columns.ids[batch.rows] == batch.ids).all()
            runs = zip(batch.ids.tolist(), batch.fire_ms.tolist(), strict=True)
            found += [OfferedRun(job_id, fire, batch.offer, batch.step) for job_id, fire in runs]
        assert sorted(found, key=str) == sorted(expected, key=str)
        self.pending += sum(run.offer.value != "reoffered" for run in found)

    @rule(data=st.data(), count=st.integers(1, 4))
    def edit(self, data: st.DataObject, count: int) -> None:
        """Insert or replace jobs."""
        drawn = {job.id: job for job in (data.draw(jobs(self.now_ms)) for _ in range(count))}
        for job in drawn.values():
            self.model.put(job)
        self.engine.apply(changes_of(self.crons, *drawn.values()))

    @rule(ids=st.sets(IDS, min_size=1, max_size=6))
    def delete(self, ids: set[int]) -> None:
        """Delete jobs, known and unknown ones."""
        known = ids & set(self.model.jobs)
        for job_id in ids:
            self.model.delete(job_id)
        assert self.engine.apply(changes_of(self.crons, deleted=ids)).deleted == len(known)

    @rule(ids=st.sets(IDS, min_size=1, max_size=6), finish=st.booleans())
    def pause(self, ids: set[int], finish: bool) -> None:
        """Switch jobs off, by an edit or because they are done."""
        paused = [replace(self.model.jobs[job_id], enabled=False) for job_id in ids & set(self.model.jobs)]
        for job in paused:
            self.model.put(job)
        if finish:
            self.engine.finish(sorted(ids))
        else:
            self.engine.apply(changes_of(self.crons, *paused))

    @rule()
    def resume_all(self) -> None:
        """Switch all jobs on again, as of now."""
        resumed = [
            replace(job, enabled=True, effective_from_ms=self.now_ms)
            for job in self.model.jobs.values()
            if not job.enabled
        ]
        for job in resumed:
            self.model.put(job)
        self.engine.apply(changes_of(self.crons, *resumed))

    @rule(way=st.sampled_from(["edit", "delete", "pause"]), ms=st.sampled_from([0, 0, 1_000, 61_000]))
    def leave_and_return(self, way: str, ms: int) -> None:
        """Move every job away from its slot and back: what it left there must not fire a second time."""
        former = list(self.model.jobs.values())
        if way == "delete":
            self.engine.apply(changes_of(self.crons, deleted=[job.id for job in former]))
        elif way == "pause":
            self.engine.finish([job.id for job in former])
        else:
            moved = [Job(job.id, interval_ms=7_000, payload=b"moved") for job in former]
            self.engine.apply(changes_of(self.crons, *moved))
        self.engine.apply(changes_of(self.crons, *former))
        for job in former:
            self.model.jobs.pop(job.id)
            if way == "pause":
                self.model.jobs[job.id] = replace(job, enabled=False)
            self.model.put(job)
        self.advance(ms)

    @rule()
    def apply_all_again(self) -> None:
        """Apply every definition once more, as a resync may: nothing changes."""
        self.engine.apply(changes_of(self.crons, *self.model.jobs.values()))

    @rule(ms=st.sampled_from([100, 999, 1_000, 1_001, 2_500, 20_000, 61_000, 119_000]))
    def advance(self, ms: int) -> None:
        """Let time pass."""
        self.now_ms += ms
        self.pass_time("stall")

    @rule(ms=st.sampled_from([122_000, 400_000, 4_000_000]), cause=st.sampled_from(["stall", "clock"]))
    def stall(self, ms: int, cause: str) -> None:
        """Let more time pass than is replayed."""
        self.now_ms += ms
        self.pass_time(cause)

    def pass_time(self, cause: str) -> None:
        """Advance both to now."""
        due = self.engine.advance(self.now_ms, cause=cause)
        while not self.engine.caught_up(self.now_ms):
            due += self.engine.advance(self.now_ms, cause=cause)
        self.compare(due, self.model.advance(self.now_ms, cause))

    @rule(
        ms=st.sampled_from([6_000, 61_000, 4_000_000]),
        wrong_ms=st.sampled_from([None, None, 0, 5_000, 60_000, 3_900_000, 8_000_000]),
    )
    def step_back(self, ms: int, wrong_ms: int | None) -> None:
        """Step the clock back, which may have been wrong for the last stretch."""
        self.step += 1
        right_ms = NEVER_MS if wrong_ms is None else self.now_ms - wrong_ms
        self.now_ms -= ms
        self.engine.step_back(self.now_ms, self.step, right_ms)
        self.model.step_back(self.now_ms, self.step, right_ms)

    @rule(
        gap_ms=st.sampled_from([0, 800, 5_000, 9_000, 90_000, 1_000_000]),
        start=st.sampled_from(["restart", "restart", "first", "no mark"]),
        parts=st.integers(1, 3),
    )
    def restart(self, gap_ms: int, start: str, parts: int) -> None:
        """Start again from the definitions, some time after the last mark."""
        mark_ms, first_start = None if start == "no mark" else self.model.cursor_ms, start == "first"
        self.now_ms += gap_ms
        former = self.model
        self.model = EngineModel(
            self.config,
            self.now_ms // 1000 * 1000,
            step=self.step,
            relived_until_ms=former.relived_until_ms,
            settled_until_ms=former.settled_until_ms,
        )
        self.new_engine()
        self.engine.misfires.first_start = first_start
        everything = sorted(former.jobs.values(), key=lambda job: job.id)
        for part in range(parts):
            loaded = everything[part::parts]
            expected = [run for job in loaded for run in self.model.load(job, mark_ms, first_start=first_start)]
            due = self.engine.load(batch_of(loaded, self.crons), {"broker": mark_ms})
            self.compare(due, expected)

    @rule(number=st.integers(0, 1))
    def sweep(self, number: int) -> None:
        """The watchdog finds nothing in an undamaged engine."""
        assert not self.engine.sweep(number).counts

    @precondition(lambda self: hasattr(self, "engine"))
    @invariant()
    def same_account(self) -> None:
        """Both count the same, and the identity holds with everything pending."""
        assert self.ledger.expected == self.model.expected
        assert +self.ledger.skipped == +self.model.skipped
        assert self.ledger.difference(self.pending) == 0

    @precondition(lambda self: hasattr(self, "engine"))
    @invariant()
    def same_jobs(self) -> None:
        """Every job is found by its id, with its next fire time; nothing else is."""
        assert len(self.engine) == len(self.model.jobs)
        for job_id, view in zip(range(-3, 25), self.engine.lookup(range(-3, 25)), strict=True):
            job = self.model.jobs.get(job_id)
            if job is None or not job.enabled:
                assert view is None
                continue
            assert (view.id, view.name, view.payload) == (job_id, job.name, job.payload)
            assert view.next_fire_ms == self.model.next_fire(job)

    @precondition(lambda self: hasattr(self, "engine"))
    @invariant()
    def sound_structures(self) -> None:
        """One valid entry for each armed row, stale entries only in dirty places, ids sorted or in the overlay."""
        for shard in self.engine.shards:
            shard.file()
            rows = shard.table.rows
            valid = np.zeros(len(rows.ids), np.int64)
            wheel = shard.wheel
            for (is_far, entries, places), dirty in zip(
                wheel.entries(), (wheel.dirty_slots, wheel.dirty_far), strict=True
            ):
                slots = shard.ticks.slot_of(rows.next_fire[entries])
                right = (slots // wheel.window_ticks if is_far else slots) == places
                once = set(zip(entries[right].tolist(), places[right].tolist(), strict=True))
                valid[[row for row, _ in once]] += 1
                repeated = len(once) < int(np.count_nonzero(right))
                assert set(places[~right].tolist()) <= dirty
                assert not repeated or dirty
            assert (valid == (rows.next_fire != NEVER_MS)).all()
            in_order = rows.ids[: shard.table.sorted_rows]
            assert (in_order[1:] > in_order[:-1]).all()
            behind = rows.ids[shard.table.sorted_rows :].tolist()
            assert shard.table.overlay == {job_id: shard.table.sorted_rows + at for at, job_id in enumerate(behind)}
            assert shard.table.dead_rows == int(np.count_nonzero(rows.flags & DEAD))
        assert sum(self.engine.shards.payloads._live) == len(self.engine)


@pytest.mark.promise("every-due-run-is-accounted-for")
class TestEngineOracle(EngineOracle.TestCase):
    """What the machine does, for a few examples."""

    settings = machine_settings(60)


@pytest.mark.promise("every-due-run-is-accounted-for")
@pytest.mark.soak
@pytest.mark.timeout(3_600)
class TestEngineOracleForLong(EngineOracle.TestCase):
    """The same, for as many examples as ``WHEELBEAT_SOAK_EXAMPLES`` says."""

    settings = machine_settings(int(os.environ.get("WHEELBEAT_SOAK_EXAMPLES", "5000")))
