"""One-time jobs and what bounds a schedule: the first and the last moment of everything, to the millisecond.

Compiled rows in a real engine, against the brute-force fire times that the simulation's auditor uses.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import pytest
from simulation.fire_times import plan_of
from simulation.sim_database import BLANK

from celery_wheelbeat.engine import EngineConfig
from celery_wheelbeat.engine.engine import Engine
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.jobs.compile import compile_rows
from celery_wheelbeat.jobs.definitions import ChangeBatch, Flag
from celery_wheelbeat.jobs.validation import check
from celery_wheelbeat.schedules.cron import CronTable
from celery_wheelbeat.schedules.solar import SolarSchedule

if TYPE_CHECKING:
    from celery_wheelbeat.jobs.rows import MonitorRow


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


NOW_MS = ms("2027-05-01T12:00:00")
LAST_MS = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z."""


def row(**columns: object) -> MonitorRow:
    return BLANK._replace(id=5, name="five", **columns)


class Bench:
    """An engine with the compiled ``rows``, started at ``now_ms``."""

    def __init__(self, *rows: MonitorRow, now_ms: int = NOW_MS) -> None:
        self.crons = CronTable()
        self.engine = Engine(EngineConfig(shards=1, stall_limit_ms=10**9), self.crons, Ledger())
        self.engine.start(now_ms)
        compiled = compile_rows(rows, crons=self.crons, solar=SolarSchedule)
        assert not compiled.refused
        self.flags = compiled.batch.flags.tolist()
        self.engine.apply(ChangeBatch(compiled.batch, np.empty(0, np.int64)))

    def fires_until(self, until_ms: int) -> list[int]:
        return [fire for batch in self.engine.advance(until_ms) for fire in batch.fire_ms.tolist()]


BOUNDED = {
    "start is inclusive": row(interval_ms=10_000, start_at_ms=NOW_MS + 5_000),
    "a start off the tick": row(interval_ms=10_000, start_at_ms=NOW_MS + 5_250),
    "a start long ago names the phase": row(interval_ms=10_000, start_at_ms=NOW_MS - 10**12 + 3_000),
    "end is exclusive": row(interval_ms=10_000, jitter_s=0, end_at_ms=NOW_MS + 20_000),
    "one ms later it is not": row(interval_ms=10_000, jitter_s=0, end_at_ms=NOW_MS + 20_001),
    "an end that has passed": row(interval_ms=1_000, end_at_ms=NOW_MS - 1),
    "start and end": row(interval_ms=1_500, start_at_ms=NOW_MS + 3_000, end_at_ms=NOW_MS + 9_000),
    "an incident over the end": row(
        interval_ms=30_000, end_at_ms=NOW_MS + 9_000, incident_interval_ms=2_000, incident_until_ms=NOW_MS + 20_000
    ),
    "an incident before the start": row(
        interval_ms=7_000, start_at_ms=NOW_MS + 9_000, incident_interval_ms=2_000, incident_until_ms=NOW_MS + 15_000
    ),
    "an incident that ends on a fire": row(
        interval_ms=10_000, jitter_s=0, incident_interval_ms=1_000, incident_until_ms=NOW_MS + 20_000
    ),
    "a cron in bounds": row(cron="* * * * *", start_at_ms=NOW_MS + 61_000, end_at_ms=NOW_MS + 200_000),
    "a once": row(once_at_ms=NOW_MS + 4_000),
    "a once off the tick": row(once_at_ms=NOW_MS + 4_001),
    "a once with jitter": row(once_at_ms=NOW_MS + 4_000, jitter_s=60),
    "a once at its start": row(once_at_ms=NOW_MS + 4_000, start_at_ms=NOW_MS + 4_000),
    "a once just before its end": row(once_at_ms=NOW_MS + 4_000, end_at_ms=NOW_MS + 4_001),
    "a once whose jitter leads past its end": row(once_at_ms=NOW_MS + 4_000, jitter_s=60, end_at_ms=NOW_MS + 4_001),
}


@pytest.mark.parametrize("bounded", BOUNDED.values(), ids=BOUNDED)
def test_bounds(bounded: MonitorRow) -> None:
    assert check(bounded) == []
    until_ms = NOW_MS + 300_000
    assert Bench(bounded).fires_until(until_ms) == plan_of(bounded).fires(NOW_MS, until_ms)


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ({"once_at_ms": NOW_MS, "end_at_ms": NOW_MS}, "once_at"),
        ({"once_at_ms": NOW_MS, "start_at_ms": NOW_MS + 1}, "once_at"),
        ({"interval_ms": 1_000, "start_at_ms": NOW_MS, "end_at_ms": NOW_MS}, "end_at"),
        ({"once_at_ms": NOW_MS, "expires_next": True}, "expires_next"),
        ({"once_at_ms": LAST_MS + 1}, "once_at"),
        ({"cron": "0 0 31 2 *"}, "cron"),
    ],
)
def test_what_could_never_run_is_refused(columns: dict[str, object], field: str) -> None:
    assert [problem.field for problem in check(row(**columns))] == [field]


@pytest.mark.parametrize("columns", [{"once_at_ms": NOW_MS}, {"interval_ms": 1_000, "one_off": True}])
def test_a_once_is_a_one_off(columns: dict[str, object]) -> None:
    assert [flags & Flag.ONE_OFF for flags in Bench(row(**columns)).flags] == [Flag.ONE_OFF]


@pytest.mark.parametrize("columns", [{"finished_at_ms": NOW_MS}, {"enabled": False}])
def test_what_is_done_or_off_does_not_fire(columns: dict[str, object]) -> None:
    assert Bench(row(once_at_ms=NOW_MS + 1_000, **columns)).fires_until(NOW_MS + 10_000) == []


@pytest.mark.parametrize(
    ("now", "until", "fires"),
    [
        ("2028-02-28T23:59:00", "2028-03-01T00:00:30", ["2028-02-29T00:00:00"]),
        ("2027-02-28T23:59:00", "2027-03-01T00:00:30", []),
        ("2100-02-28T23:59:00", "2100-03-01T00:00:30", []),
    ],
)
def test_leap_days(now: str, until: str, fires: list[str]) -> None:
    bench = Bench(row(cron="0 0 29 2 *", jitter_s=0), now_ms=ms(now))
    assert bench.fires_until(ms(until)) == [ms(fire) for fire in fires]


def test_a_leap_day_is_waited_for_over_a_century_without_one() -> None:
    bench = Bench(row(cron="0 0 29 2 *", jitter_s=0), now_ms=ms("2096-02-29T00:00:00"))
    assert bench.engine.next_fire(5, ms("2096-02-29T00:00:00")) == ms("2104-02-29T00:00:00")


def test_the_last_second_of_the_year_9999() -> None:
    once = row(once_at_ms=LAST_MS)
    bench = Bench(once, row(interval_ms=1_000, jitter_s=0)._replace(id=6, name="six"), now_ms=LAST_MS - 3_999)
    fires = bench.fires_until(LAST_MS + 1)
    assert fires == [LAST_MS - 2_999, LAST_MS - 1_999, LAST_MS - 999, LAST_MS, LAST_MS + 1]


def test_a_once_far_away_does_not_fire_early() -> None:
    bench = Bench(row(once_at_ms=LAST_MS))
    assert bench.fires_until(NOW_MS + 100_000) == []
    assert bench.engine.next_fire(5, NOW_MS) == LAST_MS


def test_a_once_is_missed_late_rather_than_never() -> None:
    bench = Bench()
    compiled = compile_rows([row(once_at_ms=NOW_MS - 86_400_000)], crons=bench.crons)
    due = bench.engine.load(compiled.batch, {"broker": NOW_MS - 100_000_000})
    assert [batch.fire_ms.tolist() for batch in due] == [[NOW_MS - 86_400_000]]


def test_solar_events_come_from_the_poll_lane_once_each() -> None:
    solar = row(solar_event="solar_noon", solar_latitude=52.5, solar_longitude=13.4)
    assert check(solar) == []
    bench = Bench(solar, now_ms=ms("2027-05-01T00:00:00"))
    fires = []
    for hour in range(49):
        fires += bench.fires_until(ms("2027-05-01T00:00:00") + hour * 3_600_000)
    assert len(fires) == 2
    assert all(abs(fire - ms(f"2027-05-0{day}T11:04:00")) < 120_000 for day, fire in enumerate(fires, 1))
