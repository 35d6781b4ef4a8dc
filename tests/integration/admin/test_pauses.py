"""Pausing ends no history: past runs and the last due time go on over pauses, on every database."""

from __future__ import annotations

import time
from contextlib import ExitStack
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from services import OWN_NAME, mysql_database_beside, postgres_database_beside
from support.site.databases import as_default, site_database

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LIST = "/admin/wheelbeat/monitor/"


def an_hour_old(**columns: Any) -> Any:
    """Make a monitor that took effect an hour ago."""
    from django.utils import timezone

    from django_wheelbeat.models import Monitor

    begin = timezone.now() - timedelta(hours=1)
    return Monitor.objects.create(
        **{"name": "m", "task": "t", "interval_ms": 60_000, "jitter_s": 0, "effective_from": begin, **columns}
    )


def periods() -> list[tuple[int, int]]:
    from django_wheelbeat.active_periods import active_periods_of
    from django_wheelbeat.models import Monitor
    from django_wheelbeat.monitors.times import now_ms

    return [tuple(period) for period in active_periods_of(Monitor.objects.get(), now_ms())]


def near(instant_ms: int, expected_ms: int) -> bool:
    return abs(instant_ms - expected_ms) < 30_000


def test_a_pause_keeps_the_stretch_before_it_and_only_the_database_writes_it(any_vendor: Any) -> None:
    from django_wheelbeat.models import Change, Monitor
    from django_wheelbeat.monitors.rows import to_ms

    begin_ms = to_ms(an_hour_old().effective_from)
    stale = Monitor.objects.get()
    Monitor.objects.update(enabled=False)
    ((first_begin, first_end),) = periods()
    assert first_begin == begin_ms
    assert near(first_end, time.time_ns() // 1_000_000)
    changes = Change.objects.count()
    Monitor.objects.update(active_before="forged", description="x")
    assert periods() == [(first_begin, first_end)], "nobody but the trigger writes it"
    assert Change.objects.count() == changes, "a beat does not care"
    Monitor.objects.update(enabled=True)
    (now, before) = periods()
    assert before == (first_begin, first_end)
    assert now[0] >= first_end
    stale.queue = "q"
    stale.save()  # writes every column, as it was before the pause
    assert periods()[1] == before
    Monitor.objects.update(interval_ms=30_000)
    assert len(periods()) == 1, "what was due with another schedule is not known"
    Monitor.objects.update(enabled=False, interval_ms=60_000)
    assert periods() == []


def test_of_many_pauses_the_last_are_kept(any_vendor: Any) -> None:
    from django_wheelbeat.active_periods import PERIODS_KEPT
    from django_wheelbeat.models import Monitor

    an_hour_old()
    for _ in range(PERIODS_KEPT + 2):
        Monitor.objects.update(enabled=False)
        Monitor.objects.update(enabled=True)
    found = periods()
    assert len(found) == PERIODS_KEPT + 1
    assert found == sorted(found, reverse=True)
    assert all(begin_ms <= end_ms for begin_ms, end_ms in found)
    assert all(before[1] <= after[0] for after, before in pairwise(found))


@pytest.mark.parametrize("text", ["", "garbage", "1-2,", "0" * 32, "٠" * 15 + "-" + "٠" * 15 + ","])
def test_what_no_trigger_has_written_is_no_stretch(text: str) -> None:
    from django_wheelbeat.active_periods import active_periods_of
    from django_wheelbeat.models import Monitor

    assert active_periods_of(Monitor(active_before=text, enabled=False), 0) == []


def test_the_last_due_time_and_the_past_runs_go_on_over_a_pause(either: Any, login: Callable[..., Any]) -> None:
    from django_wheelbeat.models import Monitor
    from django_wheelbeat.monitors.times import now_ms

    def shown() -> tuple[int | None, int]:
        (row,) = browser.get(LIST).context["cl"].result_list
        page = browser.get(f"{LIST}{monitor.pk}/runs/")
        return row.last_fire_ms, len(page.context["runs"])

    monitor, browser = an_hour_old(interval_ms=600_000), login()
    before = shown()
    assert before[0] is not None
    assert before[1] in (6, 7)
    Monitor.objects.all().pause("maintenance")
    assert shown() == before, "while it is paused"
    assert "Paused, without due runs" not in browser.get(f"{LIST}{monitor.pk}/runs/").content.decode()
    Monitor.objects.all().resume()
    resumed = shown()
    assert resumed == before or now_ms() - resumed[0] < 60_000, "or it was due just now"
    assert "Paused, without due runs:" in browser.get(f"{LIST}{monitor.pk}/runs/").content.decode()


def test_nothing_was_due_within_a_pause(db: Any) -> None:
    from celery_wheelbeat.schedules.intervals import Bounded, Interval
    from django_wheelbeat.active_periods import ActivePeriod, pauses_of
    from django_wheelbeat.admin.past_runs import RUNS_SHOWN, _past_fires_in

    parts = [ActivePeriod(1_000_000, 1_050_000), ActivePeriod(700_000, 800_000), ActivePeriod(0, 100_000)]
    assert pauses_of(parts) == [ActivePeriod(800_000, 1_000_000), ActivePeriod(100_000, 700_000)]
    fires = _past_fires_in(parts, Bounded(Interval(10)))
    assert len(fires) == RUNS_SHOWN
    within = [*range(1_050_000, 999_999, -10_000), *range(800_000, 699_999, -10_000), *range(100_000, -1, -10_000)]
    assert fires == within[:RUNS_SHOWN]


@pytest.mark.parametrize("vendor", [
    "sqlite", pytest.param("postgresql", marks=pytest.mark.postgres), pytest.param("mysql", marks=pytest.mark.mysql),
])  # fmt: skip
def test_the_column_goes_and_comes_back_with_its_migration(
    request: pytest.FixtureRequest, vendor: str, tmp_path: Path
) -> None:
    from django.core.management import call_command

    from django_wheelbeat.database import triggers
    from django_wheelbeat.models import Monitor

    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path}/site.sqlite3"
        if vendor != "sqlite":
            beside = postgres_database_beside if vendor == "postgresql" else mysql_database_beside
            server = request.getfixturevalue("postgres_url" if vendor == "postgresql" else "mysql_url")
            url = stack.enter_context(beside(server, f"{OWN_NAME}_pauses"))
        connection = stack.enter_context(site_database(url))
        stack.enter_context(as_default(connection))
        for _ in range(2):
            call_command("migrate", "wheelbeat", "0009", verbosity=0)
            assert triggers.missing(connection) == []
            call_command("migrate", "wheelbeat", verbosity=0)
            assert triggers.missing(connection) == []
        an_hour_old()
        Monitor.objects.update(enabled=False)
        assert len(periods()) == 1
        call_command("migrate", "wheelbeat", "zero", verbosity=0)
        assert "wheelbeat_monitor" not in connection.introspection.table_names()
