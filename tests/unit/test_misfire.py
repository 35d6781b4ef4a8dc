"""The one rule for time that was missed, as a table of cases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.engine.definitions import Job, batch_of

from celery_wheelbeat.engine.misfire import Gap, MisfireRule, settle
from celery_wheelbeat.jobs.definitions import Misfire
from celery_wheelbeat.schedules.cron import Cron, CronTable

DAY_MS = 86_400_000
T = 20_000 * DAY_MS
"""A midnight."""
RULE = MisfireRule(gap_ms=900_000, deadline_ms=None, all_max=1_000, lookback_ms=5_000)

MINUTELY = Job(1, interval_ms=60_000, offset_ms=0)
QUARTERLY = Job(1, interval_ms=900_000, offset_ms=0)
NIGHTLY = Job(1, cron=Cron("0 3 * * *"))
FREQUENT = Job(1, cron=Cron("*/10 * * * *"))
ONCE = Job(1, at_ms=T + 1_000)


def offered(job: Job, policy: Misfire, after_ms: int, until_ms: int, rule: MisfireRule = RULE) -> tuple[list[int], int]:
    """Settle one job's gap: offered fire times relative to T, and the number that is skipped."""
    crons = CronTable()
    batch = batch_of([replace(job, misfire=policy)], crons)
    gap = Gap(batch.schedules(), batch.flags, np.array([after_ms]), np.array([until_ms]))
    missed = settle(gap, rule, crons)
    assert missed.positions.tolist() == [0] * len(missed.fire_ms)
    return (missed.fire_ms - T).tolist(), missed.skipped


HOUR = (T, T + 3_600_000)
DAYS = (T, T + 3 * DAY_MS)


@pytest.mark.promise("missed-runs-follow-one-rule")
@pytest.mark.parametrize(
    ("job", "policy", "gap", "runs", "skipped"),
    [
        (MINUTELY, Misfire.AUTO, HOUR, [], 60),
        (MINUTELY, Misfire.SKIP, HOUR, [], 60),
        (MINUTELY, Misfire.LATEST, HOUR, [3_600_000], 59),
        (MINUTELY, Misfire.ALL, HOUR, [60_000 * k for k in range(1, 61)], 0),
        (QUARTERLY, Misfire.AUTO, HOUR, [3_600_000], 3),
        (replace(QUARTERLY, interval_ms=899_000), Misfire.AUTO, HOUR, [], 4),
        (NIGHTLY, Misfire.AUTO, DAYS, [2 * DAY_MS + 3 * 3_600_000], 2),
        (NIGHTLY, Misfire.AUTO, HOUR, [], 0),
        (NIGHTLY, Misfire.SKIP, DAYS, [], 3),
        (NIGHTLY, Misfire.ALL, DAYS, [3 * 3_600_000 + k * DAY_MS for k in range(3)], 0),
        (FREQUENT, Misfire.AUTO, HOUR, [], 6),
        (FREQUENT, Misfire.LATEST, HOUR, [3_600_000], 5),
        (ONCE, Misfire.AUTO, HOUR, [1_000], 0),
        (ONCE, Misfire.LATEST, DAYS, [1_000], 0),
        (ONCE, Misfire.SKIP, HOUR, [], 1),
        (ONCE, Misfire.LATEST, (T + 1_000, T + 2_000), [], 0),
        (replace(MINUTELY, end_ms=T + 120_000), Misfire.AUTO, HOUR, [], 1),
        (replace(MINUTELY, start_ms=T + 3_600_000), Misfire.LATEST, HOUR, [3_600_000], 0),
        (
            replace(MINUTELY, incident_interval_ms=10_000, incident_until_ms=T + 120_000),
            Misfire.LATEST,
            HOUR,
            [3_600_000],
            12 + 58 - 1,
        ),
    ],
)
def test_policies(job, policy, gap, runs, skipped):
    assert offered(job, policy, *gap) == (runs, skipped)


def test_the_starting_deadline_bounds_crons_under_latest_only():
    rule = RULE._replace(deadline_ms=1_800_000)
    until = T + 3 * 3_600_000 + 1_800_000
    assert offered(NIGHTLY, Misfire.LATEST, T, until, rule) == ([3 * 3_600_000], 0)
    assert offered(NIGHTLY, Misfire.LATEST, T, until + 1, rule) == ([], 1)
    assert offered(NIGHTLY, Misfire.AUTO, T, until + 1, rule) == ([3 * 3_600_000], 0)
    assert offered(ONCE, Misfire.LATEST, T, until + DAY_MS, rule) == ([1_000], 0)


@pytest.mark.parametrize(
    "job", [MINUTELY, FREQUENT, replace(MINUTELY, incident_interval_ms=7_000, incident_until_ms=T + DAY_MS)]
)
def test_all_keeps_the_newest_up_to_its_bound(job):
    everything, _ = offered(job, Misfire.ALL, *DAYS, RULE._replace(all_max=10**6))
    kept, skipped = offered(job, Misfire.ALL, *DAYS, RULE._replace(all_max=25))
    assert kept == everything[-25:]
    assert skipped == len(everything) - 25


def test_many_jobs_are_settled_together_in_order_of_fire_time():
    crons = CronTable()
    batch = batch_of([Job(n, interval_ms=3_600_000, misfire=Misfire(n % 4)) for n in range(400)], crons)
    gap = Gap(batch.schedules(), batch.flags, np.full(400, T), np.full(400, T + 2 * 3_600_000))
    missed = settle(gap, RULE, crons)
    assert missed.expected == 800
    assert (np.diff(missed.fire_ms) >= 0).all()
    offers = np.bincount(missed.positions, minlength=400)
    assert [set(offers[policy::4].tolist()) for policy in range(4)] == [{1}, {0}, {1}, {2}]
