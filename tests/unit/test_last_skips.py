"""What is remembered of skipped runs: periods, bounded, with names while they are few."""

from __future__ import annotations

import numpy as np

from celery_wheelbeat.engine.ledger import JOBS_NAMED_MAX, PERIODS_MAX, LastSkips, SkippedPeriod


def columns(*pairs: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    ids, fires_ms = zip(*pairs, strict=True)
    return np.array(ids, np.int64), np.array(fires_ms, np.int64)


def test_what_follows_closely_for_one_reason_is_one_stretch():
    skips = LastSkips()
    skips.note_runs("backlog", *columns((7, 1_000), (8, 2_000)))
    skips.note_runs("error", *columns((9, 3_000)))
    skips.note_runs("backlog", *columns((7, 61_000)))
    skips.note_runs("backlog", *columns((7, 500_000)))
    assert list(skips) == [
        SkippedPeriod("error", 1, 3_000, 3_000, (9,)),
        SkippedPeriod("backlog", 3, 1_000, 61_000, (7, 8)),
        SkippedPeriod("backlog", 1, 500_000, 500_000, (7,)),
    ]


def test_many_jobs_are_not_named_and_stay_unnamed():
    skips = LastSkips()
    skips.note_runs("backlog", *columns(*[(job, 1_000) for job in range(JOBS_NAMED_MAX)]))
    assert len(next(iter(skips)).job_ids) == JOBS_NAMED_MAX
    skips.note_runs("backlog", *columns((99, 2_000)))
    assert next(iter(skips)).job_ids == ()
    skips.note_runs("backlog", *columns((1, 3_000)))
    assert list(skips) == [SkippedPeriod("backlog", JOBS_NAMED_MAX + 2, 1_000, 3_000, ())]
    skips.note_runs("error", *columns(*[(job, 1_000) for job in range(100_000)]))
    assert list(skips)[-1] == SkippedPeriod("error", 100_000, 1_000, 1_000, ())


def test_a_gap_begins_after_its_mark_and_an_empty_one_is_none():
    skips = LastSkips()
    skips.note_gap("restart", 0, 1_000, 9_000)
    skips.note_gap("restart", 8, 1_000, 9_000)
    skips.note_runs("restart", np.empty(0, np.int64), np.empty(0, np.int64))
    assert list(skips) == [SkippedPeriod("restart", 8, 1_001, 9_000, ())]


def test_the_memory_is_bounded():
    skips = LastSkips()
    for number in range(100):
        skips.note_runs("error", *columns((number, number * 1_000_000)))
    assert len(list(skips)) == PERIODS_MAX
    assert list(skips)[-1].job_ids == (99,)
