"""A share of the shards: whose runs are sent and counted, what is kept of the others, what a take returns."""

from __future__ import annotations

import numpy as np
import pytest
from support.engine.definitions import Job, batch_of, changes_of

from celery_wheelbeat.engine import EngineConfig
from celery_wheelbeat.engine.engine import Engine
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.engine.sharing.followed import Followed, KeptRuns
from celery_wheelbeat.jobs.definitions import Misfire, Route
from celery_wheelbeat.schedules.cron import CronTable
from celery_wheelbeat.schedules.kinds import ALWAYS_MS, Asked

NOW_MS = 1_700_000_000_000
FIRST = np.array([True, False])
SECOND = ~FIRST
BOTH = np.ones(2, np.bool_)
CRONS = CronTable()


def engine_at(now_ms: int, **options: int) -> Engine:
    """An engine of two shards without jobs."""
    engine = Engine(EngineConfig(shards=2, window_ms=60_000, **options), CRONS, Ledger())
    engine.routes.intern(Route("probe"))
    engine.start(now_ms)
    return engine


def every_second(*ids: int, **options: object) -> list[Job]:
    """Jobs that fire each second."""
    return [Job(job_id, interval_ms=1_000, offset_ms=0, **options) for job_id in ids]


def runs_of(due: list) -> list[tuple[int, int]]:
    """Job and seconds after ``NOW_MS`` of each run."""
    return [
        (job_id, (fire_ms - NOW_MS) // 1000)
        for batch in due
        for job_id, fire_ms in zip(batch.ids.tolist(), batch.fire_ms.tolist(), strict=True)
    ]


def marks(first_s: int, second_s: int) -> np.ndarray:
    """Marks of the two shards, in seconds after ``NOW_MS``."""
    return NOW_MS + 1000 * np.array([first_s, second_s], np.int64)


def kept(*runs: tuple[int, int]) -> KeptRuns:
    """Runs as (job, seconds after ``NOW_MS``)."""
    ids, fires_s = np.array(runs, np.int64).T
    return KeptRuns(ids, NOW_MS + 1000 * fires_s, np.zeros(len(ids), np.int32))


def test_only_the_share_is_sent_and_expected():
    engine = engine_at(NOW_MS)
    engine.apply(changes_of(CRONS, *every_second(2, 3)))
    engine.follow(SECOND)
    assert runs_of(engine.advance(NOW_MS + 2_000)) == [(2, 1), (2, 2)]
    assert (engine.ledger.expected, engine.ledger.followed, len(engine.share.followed)) == (2, 2, 2)
    assert all(not engine.sweep(number).counts for number in (0, 1))


def test_a_take_returns_what_is_after_the_mark_and_goes_on():
    engine = engine_at(NOW_MS)
    engine.apply(changes_of(CRONS, *every_second(2, 3)))
    engine.follow(BOTH)
    assert engine.advance(NOW_MS + 4_000) == []
    engine.forget_followed(marks(0, 1))
    assert runs_of(engine.take(SECOND, marks(0, 2))) == [(3, 3), (3, 4)]
    assert engine.ledger.expected == 2
    assert runs_of(engine.advance(NOW_MS + 5_000)) == [(3, 5)]
    assert runs_of(engine.take(FIRST, marks(4, 0))) == [(2, 5)]


def test_runs_of_a_job_that_is_gone_by_the_take_are_skipped():
    engine = engine_at(NOW_MS)
    engine.apply(changes_of(CRONS, *every_second(3)))
    engine.follow(BOTH)
    engine.advance(NOW_MS + 2_000)
    engine.apply(changes_of(CRONS, deleted=[3]))
    assert engine.take(BOTH, marks(0, 0)) == []
    assert engine.ledger.skipped["removed"] == 2
    assert engine.ledger.difference(0) == 0


def test_what_a_beat_missed_before_it_followed_is_settled_by_policy():
    """A nightly job, due between the mark and the load, is offered; runs shortly after the mark are, too."""
    engine = engine_at(NOW_MS)
    engine.follow(BOTH)
    nightly = Job(2, interval_ms=86_400_000, anchor_ms=NOW_MS - 20_000, offset_ms=0)
    assert engine.load(batch_of([nightly, *every_second(3)], CRONS), {"broker": NOW_MS - 60_000}) == []
    assert engine.ledger.expected == 0
    engine.advance(NOW_MS + 1_000)
    due = engine.take(BOTH, marks(-30, -30))
    assert sorted(runs_of(due)) == [(2, -20), *((3, second) for second in range(-29, -24)), (3, 1)]
    assert engine.ledger.expected == 1 + 31
    assert engine.ledger.skipped["restart"] == 25


def test_a_missed_one_time_job_is_returned_by_the_advance_after_the_take():
    engine = engine_at(NOW_MS)
    engine.follow(BOTH)
    engine.load(batch_of([Job(2, at_ms=NOW_MS - 7_000), Job(4, at_ms=NOW_MS - 9_000)], CRONS), {"broker": NOW_MS})
    assert engine.advance(NOW_MS + 1_000) == []
    engine.finish([4])
    assert engine.take(BOTH, marks(0, 0)) == []
    assert runs_of(engine.advance(NOW_MS + 2_000)) == [(2, -7)]


def test_a_long_stall_of_a_follower_is_a_stretch_that_it_has_not_followed():
    engine = engine_at(NOW_MS, stall_limit_ms=10_000)
    engine.apply(changes_of(CRONS, *every_second(2, misfire=Misfire.LATEST), Job(4, at_ms=NOW_MS + 30_500)))
    engine.follow(BOTH)
    engine.advance(NOW_MS + 2_000)
    assert engine.advance(NOW_MS + 60_000) == []
    assert not engine.sweep(0).counts
    engine.advance(NOW_MS + 61_000)
    assert runs_of(engine.take(BOTH, marks(55, 0))) == [(2, 61), *((2, second) for second in range(56, 61))]
    assert runs_of(engine.advance(NOW_MS + 62_000))[-1] == (4, 30)


def test_kept_runs_older_than_the_stall_limit_are_settled_by_policy():
    engine = engine_at(NOW_MS, stall_limit_ms=10_000)
    engine.apply(changes_of(CRONS, *every_second(2)))
    engine.follow(BOTH)
    for second in range(1, 31):
        engine.advance(NOW_MS + 1_000 * second)
    due = runs_of(engine.take(BOTH, marks(0, 0)))
    assert sorted(due) == [(2, second) for second in (*range(1, 6), *range(21, 31))]
    assert engine.ledger.skipped["restart"] == 15
    assert engine.ledger.expected == 30


def test_runs_given_away_are_returned_by_the_next_take():
    engine = engine_at(NOW_MS)
    engine.apply(changes_of(CRONS, *every_second(2), Job(4, at_ms=NOW_MS + 1_000)))
    engine.advance(NOW_MS + 1_000)
    engine.follow(BOTH)
    engine.ledger.hand_on(2)
    engine.give_away(*kept((2, 1), (4, 1)))
    assert engine.ledger.difference(0) == 0
    assert runs_of(engine.take(BOTH, marks(0, 0))) == [(2, 1)]
    assert runs_of(engine.advance(NOW_MS + 2_000)) == [(2, 2), (4, 1)]


def test_foreign_schedules_are_asked_by_the_owner_only():
    class Foreign:
        def __init__(self) -> None:
            self.asked: list[int] = []

        def ask(self, now_ms: int) -> Asked:
            self.asked.append(now_ms)
            return Asked(now_ms, now_ms + 1_000)

    foreign = Foreign()
    engine = engine_at(NOW_MS)
    engine.follow(BOTH)
    engine.apply(changes_of(CRONS, Job(3, polled=foreign)))
    engine.advance(NOW_MS + 2_000)
    assert not foreign.asked
    assert not engine.sweep(1).counts
    engine.take(SECOND, marks(0, 3))
    assert runs_of(engine.advance(NOW_MS + 3_000)) == []  # not after the mark
    assert runs_of(engine.advance(NOW_MS + 4_000)) == [(3, 4)]
    engine.follow(SECOND)
    engine.advance(NOW_MS + 9_000)
    assert foreign.asked == [NOW_MS + 3_000, NOW_MS + 4_000]
    engine.apply(changes_of(CRONS, deleted=[3]))
    engine.take(SECOND, marks(0, 9))
    assert engine.advance(NOW_MS + 20_000) == []


class TestFollowed:
    """The kept runs alone."""

    def test_the_bound_drops_the_oldest_and_their_time_counts_as_not_followed(self):
        followed = Followed(2, limit=2)
        followed.keep_runs(kept((2, 1), (3, 2), (2, 3), (3, 4)))
        gone = followed.trim(marks(0, 0))
        assert gone.ids.tolist() == [2, 3]
        taken = followed.take(BOTH, marks(-9, -9), ALWAYS_MS)
        assert taken.runs.ids.tolist() == [2, 3]
        assert taken.stretches == [(0, NOW_MS - 9_000, NOW_MS + 2_000), (1, NOW_MS - 9_000, NOW_MS + 2_000)]

    def test_a_take_leaves_the_other_shards(self):
        followed = Followed(2, limit=10)
        followed.keep_runs(kept((2, 1), (3, 1)))
        assert followed.take(FIRST, marks(0, 0), ALWAYS_MS).runs.ids.tolist() == [2]
        assert followed.holds(np.array([2, 3])).tolist() == [False, True]
        assert followed.take(FIRST, marks(0, 0), ALWAYS_MS).runs.ids.tolist() == []

    @pytest.mark.parametrize(("mark_s", "stretches"), [(3, [(0, NOW_MS + 3_000, NOW_MS + 5_000)]), (5, []), (6, [])])
    def test_a_mark_shortens_or_ends_the_stretch_that_was_not_followed(self, mark_s: int, stretches: list):
        followed = Followed(2, limit=10)
        followed.keep_runs(kept((2, 1), (2, 4), (2, 6)))
        followed.miss(FIRST, NOW_MS + 2_000, NOW_MS + 5_000)
        taken = followed.take(FIRST, marks(mark_s, 0), ALWAYS_MS)
        assert taken.runs.fire_ms.tolist() == ([NOW_MS + 6_000] if mark_s < 6 else [])
        assert taken.stretches == stretches
