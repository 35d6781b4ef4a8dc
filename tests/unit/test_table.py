"""Columns of one shard: finding, growing, removing, sorting again."""

from __future__ import annotations

import numpy as np
import pytest
from support.engine.definitions import Job, batch_of

from celery_wheelbeat.engine.packing import ON_GRID, RARE, encode, narrowed, widened
from celery_wheelbeat.engine.table import Table
from celery_wheelbeat.schedules.columns import next_fires
from celery_wheelbeat.schedules.cron import Cron, CronTable
from celery_wheelbeat.schedules.kinds import NEVER_MS

NOW_MS = 1_750_000_000_000


def fill(table: Table, ids: list[int]) -> None:
    """Append plain jobs."""
    rows, rare = encode(
        batch_of([Job(job_id, interval_ms=60_000) for job_id in ids], CronTable()), np.array(ids, np.uint32)
    )
    table.set_rare(rows.ids, rare)
    table.append(rows)


def test_ids_are_found_in_and_out_of_order():
    table = Table()
    fill(table, [2, 4, 8])
    fill(table, [16, 32])
    assert table.sorted_rows == 5
    fill(table, [1, 3])
    fill(table, [64])
    assert table.sorted_rows == 5
    assert table.rows_of(np.array([1, 2, 3, 4, 5, 64, -1])).tolist() == [5, 0, 6, 1, -1, 7, -1]
    table.renumber()
    assert not table.overlay
    assert table.rows.ids.tolist() == [1, 2, 3, 4, 8, 16, 32, 64]
    assert table.rows.ref.tolist() == [1, 2, 3, 4, 8, 16, 32, 64]


def test_an_empty_table_knows_nobody():
    assert Table().rows_of(np.array([1, 2])).tolist() == [-1, -1]


def test_growth_copies_an_eighth_more_than_is_needed():
    table = Table()
    capacities = set()
    for first in range(0, 20_000, 40):
        fill(table, list(range(first, first + 40)))
        capacities.add(len(table.columns.ids))
    assert len(capacities) < 60
    assert len(table.columns.ids) < 20_000 * 1.13
    assert table.rows.ids.tolist() == list(range(20_000))


def test_the_dead_keep_their_place_until_they_are_too_many():
    table = Table()
    fill(table, list(range(4_000)))
    table.bury(table.rows_of(np.arange(1_000)))
    assert len(table) == 3_000
    assert not table.crowded()
    table.bury(table.rows_of(np.arange(1_000, 1_100)))
    assert table.crowded()
    table.renumber()
    assert len(table) == table.row_count == 2_900
    assert table.rows_of(np.array([1_099, 1_100])).tolist() == [-1, 0]


def test_ids_out_of_order_are_sorted_before_they_are_many():
    table = Table()
    fill(table, list(range(10_000, 14_000)))
    fill(table, list(range(1_400)))
    assert table.crowded()


JOBS = [
    Job(1, interval_ms=60_000),
    Job(2, interval_ms=60_000, offset_ms=0),
    Job(3, interval_ms=60_000, anchor_ms=NOW_MS + 7, offset_ms=0),
    Job(4, interval_ms=60_000, offset_ms=13_000),
    Job(5, interval_ms=300_000, start_ms=NOW_MS + 900_000),
    Job(6, interval_ms=300_000, end_ms=NOW_MS - 1),
    Job(7, interval_ms=300_000, incident_interval_ms=10_000, incident_until_ms=NOW_MS + 60_000),
    Job(8, cron=Cron("*/5 * * * *"), offset_ms=17_000),
    Job(9, cron=Cron("0 0 29 2 *"), offset_ms=0, incident_interval_ms=5_000, incident_until_ms=NOW_MS + 60_000),
    Job(10, at_ms=NOW_MS + 5),
    Job(11, at_ms=253_402_300_799_000),
    Job(12, interval_ms=1_500),
    Job(-13, interval_ms=999),
]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: str(job.id))
def test_a_schedule_survives_encoding(job):
    crons = CronTable()
    batch = batch_of([job], crons)
    rows, rare = encode(batch, np.zeros(1, np.uint32))
    table = Table()
    table.set_rare(rows.ids, rare)
    table.append(rows)
    for schedules in (batch.schedules(), table.schedules(np.array([0]))):
        after = NOW_MS
        for _ in range(20):
            expected = job.schedule.next_fire(after)
            (found,) = next_fires(schedules, np.array([after]), crons).tolist()
            assert found == (NEVER_MS if expected is None else expected)
            after = found if expected is not None else after + 1


@pytest.mark.parametrize(("job_id", "marks"), [(1, 0), (2, ON_GRID), (3, RARE), (7, RARE), (8, 0), (10, RARE), (12, 0)])
def test_only_rare_things_cost_a_record(job_id, marks):
    (job,) = [job for job in JOBS if job.id == job_id]
    rows, rare = encode(batch_of([job], CronTable()), np.zeros(1, np.uint32))
    assert int(rows.flags[0]) & (RARE | ON_GRID) == marks
    assert bool(rare) == bool(marks & RARE)


def test_routes_take_two_bytes_until_one_of_them_needs_more():
    table = Table()
    fill(table, list(range(100)))
    rows, _ = encode(batch_of([Job(200, interval_ms=60_000)], CronTable()), np.array([7], np.uint32))
    assert table.columns.route.dtype == np.uint16
    table.append(rows._replace(route=np.array([70_000], np.uint32)))
    assert table.routes(np.array([0, 100])).tolist() == [0, 70_000]
    table.write(np.array([3]), table.rows.take([3])._replace(route=np.array([2**32 - 1], np.uint32)))
    fill(table, list(range(300, 500)))  # grows
    assert table.routes(np.array([3, 4, 100])).tolist() == [2**32 - 1, 0, 70_000]
    table.renumber()
    assert table.routes(table.rows_of(np.array([3, 200]))).tolist() == [2**32 - 1, 70_000]
    assert table.routes(np.array([0])).dtype == np.uint32


def test_a_wide_route_may_come_with_an_edit():
    table = Table()
    fill(table, list(range(10)))
    table.write(np.array([3]), table.rows.take([3])._replace(route=np.array([65_536], np.uint32)))
    assert table.rows.route.tolist() == [0, 0, 0, 65_536, 0, 0, 0, 0, 0, 0]


DAY_MS = 86_400_000
NARROW = [1, 999, 60_000, 2**30 - 1, 30 * DAY_MS, 365 * DAY_MS, (2**30 - 1) * 1000, 0, ~0, ~(7 << 32 | 8_191_000)]
WIDE = [2**30 + 1, 2**30 * 1000, 100 * 366 * DAY_MS, ~(1 << 18 << 32), ~(3 << 32 | 8_192_000), ~(3 << 32 | 1_500)]


def test_intervals_keep_value_and_sign_in_four_bytes():
    whole = np.array([*NARROW, ~((2**18 - 1) << 32)])
    narrow = narrowed(whole)
    assert narrow.dtype == np.int32
    assert np.sign(narrow).tolist() == np.sign(whole).tolist()
    assert widened(narrow).tolist() == whole.tolist()


@pytest.mark.parametrize("value", WIDE)
def test_an_interval_that_does_not_fit_stays_as_it_is(value):
    whole = np.array([*NARROW, value])
    assert narrowed(whole) is whole
    assert widened(whole) is whole


def test_a_table_is_narrow_until_one_job_does_not_fit():
    table = Table()
    fill(table, list(range(100)))
    assert (table.columns.ids.dtype, table.columns.interval.dtype) == (np.uint32, np.int32)
    crons = CronTable()
    jobs = [
        Job(-5, interval_ms=60_000),
        Job(7, cron=Cron("0 4 * * *"), offset_ms=1_500),
        Job(2**32, interval_ms=60_000),
    ]
    rows, _ = encode(batch_of(jobs, crons), np.zeros(3, np.uint32))
    table.append(rows.take([0]))
    assert (table.columns.ids.dtype, table.columns.interval.dtype) == (np.int64, np.int32)
    table.write(np.array([7]), rows.take([1]))
    table.append(rows.take([2]))
    assert (table.columns.ids.dtype, table.columns.interval.dtype) == (np.int64, np.int64)
    assert table.ids(np.array([99, 100, 101])).tolist() == [99, -5, 2**32]
    assert table.rows_of(np.array([-5, 7, 2**32])).tolist() == [100, 7, 101]
    assert table.schedules(np.array([6, 7])).offset_ms.tolist() == [0, 1_500]
    assert table.schedules(np.array([6, 7])).interval_ms.tolist() == [60_000, 0]
    table.bury(np.array([7, 100, 101]))
    table.renumber()
    assert (table.columns.ids.dtype, table.columns.interval.dtype) == (np.uint32, np.int32)
    assert table.schedules(np.array([98])).interval_ms.tolist() == [60_000]


def test_an_id_that_does_not_fit_is_not_another_job():
    table = Table()
    fill(table, [0, 1, 2, 2**32 - 1])
    assert table.rows_of(np.array([2**32, 2**32 + 1, -1, 2**32 - 1, 2])).tolist() == [-1, -1, -1, 3, 2]
