"""Routes are kept once, as long as a job has them, and an index never changes its meaning while it is in use."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engine.definitions import Job, batch_of

from celery_wheelbeat.engine import EngineConfig
from celery_wheelbeat.engine.engine import Engine
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.jobs.definitions import ChangeBatch, DefinitionBatch, Route
from celery_wheelbeat.jobs.routes import RouteTable
from celery_wheelbeat.schedules.cron import CronTable

A, B, C = (Route("proj.check", f'{{"queue": "{name}"}}') for name in "abc")
NOBODY = np.empty(0, np.int64)


def used(table: RouteTable, *indices: int) -> np.ndarray:
    """Return which indices have jobs."""
    found = np.zeros(len(table), np.bool_)
    found[list(indices)] = True
    return found


def test_a_route_that_no_job_has_gives_its_index_back() -> None:
    table, freed = RouteTable(), []
    table.freed = lambda indices: freed.extend(indices.tolist())
    assert [table.intern(route) for route in (A, B, A)] == [0, 1, 0]
    table.begin_round()
    assert table.collect(used(table, 1)) == 1
    assert freed == [0]
    with pytest.raises(IndexError, match="route 0 has no jobs"):
        table[0]
    assert table.intern(C) == 0
    assert (table[0], table[1], len(table)) == (C, B, 2)
    assert table.intern(A) == 2, "what was freed is not remembered"


def test_a_route_that_came_in_while_jobs_were_looked_at_stays() -> None:
    table = RouteTable()
    table.intern(A)
    table.begin_round()
    seen = used(table)
    table.intern(A)  # for a job of a shard that was looked at before
    table.intern(B)
    assert table.collect(seen) == 0
    assert (table[0], table[1]) == (A, B)
    table.begin_round()
    assert table.collect(used(table, 1)) == 1


@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["put", "drop", "look"])), max_size=60))
def test_every_job_has_its_own_route_whatever_comes_and_goes(steps: list[tuple[int, str]]) -> None:
    table = RouteTable()
    jobs: dict[int, tuple[int, Route]] = {}
    for number, step in steps:
        if step == "put":
            route = Route(f"t{number % 4}")
            jobs[number] = (table.intern(route), route)
        elif step == "drop":
            jobs.pop(number, None)
        else:
            table.begin_round()
            table.collect(used(table, *(index for index, _ in jobs.values())))
            assert len({index for index, _ in jobs.values()}) == sum(
                1 for index in range(len(table)) if index not in table._free
            )
        assert all(table[index] == route for index, route in jobs.values())
    assert len(table) <= 4, "indices are given again"


def own(jobs: list[Job], routes: list[Route], crons: CronTable) -> DefinitionBatch:
    """Return definitions whose route indices count ``routes``."""
    return replace(batch_of(jobs, crons), routes=routes)


def test_the_engine_gives_each_job_the_route_that_its_batch_says() -> None:
    engine = Engine(EngineConfig(shards=2), CronTable(), Ledger())
    engine.start(1_764_000_000_000)
    first = own([Job(1, interval_ms=60_000, route_index=1), Job(2, interval_ms=60_000)], [A, B], engine.crons)
    second = own([Job(3, interval_ms=60_000)], [B], engine.crons)
    third = own([Job(0, interval_ms=60_000, route_index=1)], [A, C], engine.crons)
    merged = DefinitionBatch.merged([second, third])
    assert [merged.route_at(at) for at in range(2)] == [C, B]
    engine.load(first, {})
    engine.apply(ChangeBatch(merged, NOBODY))
    views = [view for view in engine.lookup([0, 1, 2, 3]) if view is not None]
    assert [engine.routes[view.route_index] for view in views] == [C, B, A, B]
    assert len(engine.routes) == 3


def test_a_mark_counts_for_the_destination_that_the_batch_says() -> None:
    engine = Engine(EngineConfig(shards=2), CronTable(), Ledger())
    engine.start(1_764_000_000_000)
    elsewhere = Route("proj.check", destination="elsewhere")
    jobs = [Job(1, interval_ms=3_600_000, route_index=0), Job(2, interval_ms=3_600_000, route_index=1)]
    due = engine.load(own(jobs, [A, elsewhere], engine.crons), {"broker": None, "elsewhere": 1_763_990_000_000})
    assert {int(job_id) for batch in due for job_id in batch.ids} <= {2}
