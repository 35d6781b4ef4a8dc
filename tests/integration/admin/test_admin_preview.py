"""The preview: the engine's own fire times, its notes, its bounds, and who may ask."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

URL = "/admin/wheelbeat/monitor/preview/"
NOW_MS = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp() * 1000)
INCIDENT_END = {"incident_until_0": "2026-03-01", "incident_until_1": "01:00"}
PLAIN = {"timezone": "UTC", "day_rule": "and"}


def asked(browser: Any, **fields: Any) -> dict[str, Any]:
    answer = browser.get(f"{URL}?{urlencode(PLAIN | fields)}")
    assert answer.status_code == 200
    return answer.json()


@pytest.fixture(autouse=True)
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests ask more often than a person types."""
    from django_wheelbeat.admin import monitor as monitor_admin

    monkeypatch.setattr(monitor_admin, "PREVIEWS_PER_S", 1_000)


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    from django_wheelbeat.admin import monitor as monitor_admin

    monkeypatch.setattr(monitor_admin, "now_ms", lambda: NOW_MS)


@pytest.mark.parametrize(
    "fields",
    [
        {"interval_ms": "90s"},
        {"interval_ms": "90s", "jitter_s": "7"},
        {"interval_ms": "1h", "start_at_0": "2026-03-02", "start_at_1": "01:02:03"},
        {"cron": "30 2 * * *", "timezone": "Europe/Berlin"},
        {"cron": "0 0 1 * mon", "day_rule": "or", "jitter_s": "0"},
        {
            "interval_ms": "1h",
            "incident_interval_ms": "1m",
            "incident_until_0": "2026-03-01",
            "incident_until_1": "00:05",
        },
    ],
)
def test_is_what_the_engine_computes_for_the_saved_monitor(
    db: Any, login: Callable[..., Any], frozen: None, fields: dict[str, str]
) -> None:
    from celery_wheelbeat.jobs.compile import schedule_of
    from celery_wheelbeat.schedules.fire_times import fires
    from django_wheelbeat.models import Monitor
    from django_wheelbeat.monitors.rows import row_of

    browser = login()
    shown = asked(browser, monitor="4711", **fields)
    saved = browser.post(
        "/admin/wheelbeat/monitor/add/",
        PLAIN | {"name": "a", "task": "t", "misfire": "auto", "overlap": "allow", "enabled": "on"} | fields,
    )
    assert saved.status_code == 302
    row = row_of(Monitor.objects.get())._replace(id=4711)
    computed = fires(schedule_of(row), NOW_MS)
    assert [fire["fire_ms"] for fire in shown["fires"]] == [next(computed) for _ in range(10)]


def test_tells_each_fire_time_in_three_zones(db: Any, login: Callable[..., Any], frozen: None) -> None:
    shown = asked(login(), cron="30 2 * * *", timezone="Europe/Berlin", jitter_s="0", monitor="1")
    assert shown["words"].endswith("(Europe/Berlin)")
    assert shown["zone"] == "Europe/Berlin"
    assert shown["fires"][0] == {
        "fire_ms": 1772328600000,
        "in_zone": "Sun 2026-03-01 02:30:00 CET",
        "utc": "Sun 2026-03-01 01:30:00 UTC",
        "on_site": "Sun 2026-03-01 01:30:00 UTC",
    }
    assert "Runs at second :00." in shown["notes"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"cron": "30 2 * * *", "timezone": "Europe/Berlin"}, "2026-03-29"),
        ({"cron": "*/90 * * * *"}, "/90 in the minute field"),
        ({"cron": "0 0 13 * fri"}, "and"),
        ({"interval_ms": "5m"}, "without its jitter"),
        ({"interval_ms": "5m", "jitter_s": "0", "end_at_0": "2026-03-01", "end_at_1": "00:30"}, "no further runs"),
        ({"interval_ms": "5m", "end_at_0": "2026-02-01", "end_at_1": "00:30"}, "never runs again"),
        ({"interval_ms": "5m", "monitor": "42"}, "Runs at second :"),
        ({"once_at_0": "2026-02-01", "once_at_1": "00:30"}, "it runs as soon as a beat reads it"),
        ({"interval_ms": "200ms"}, "below one second: 432,000 messages a day"),
        (
            {"interval_ms": "5m", "incident_interval_ms": "10s", **INCIDENT_END},
            "every 10s until Sun 2026-03-01 01:00:00 UTC",
        ),
        ({}, "Enter a schedule"),
    ],
)  # fmt: skip
def test_notes_what_is_worth_knowing(
    db: Any, login: Callable[..., Any], frozen: None, fields: dict[str, str], words: str
) -> None:
    shown = asked(login(), **fields)
    assert not shown["problems"]
    assert any(words in note for note in shown["notes"]), shown["notes"]


def test_an_interval_that_is_too_short_is_refused_with_the_setting(
    db: Any, login: Callable[..., Any], frozen: None
) -> None:
    shown = asked(login(), interval_ms="1ms")
    assert "interval: 1ms is shorter than wheelbeat_min_interval allows, 100ms" in shown["problems"]
    assert shown["fires"] == []


def test_solar_events_are_computed(db: Any, login: Callable[..., Any], frozen: None) -> None:
    shown = asked(
        login(),
        solar_event="solar_noon",
        solar_latitude="51.5",
        solar_longitude="0",
        end_at_0="2026-03-04",
        end_at_1="00:00",
    )
    assert [fire["utc"][:17] for fire in shown["fires"]] == [
        "Sun 2026-03-01 12",
        "Mon 2026-03-02 12",
        "Tue 2026-03-03 12",
    ]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"cron": "61 * * * *"}, "61"),
        ({"cron": "0 0 31 2 *"}, "never fires"),
        ({"cron": "*" * 5_000}, "255 characters"),
        ({"cron": "0-99999999999999999 * * * *"}, "99999999999999999"),
        ({"interval_ms": "5"}, "no unit"),
        ({"interval_ms": "5m", "cron": "* * * * *"}, "expected exactly one of"),
        ({"interval_ms": "5m", "incident_interval_ms": "6m", **INCIDENT_END}, "not shorter"),
        ({"cron": "0 0 * * *", "timezone": "../etc/passwd"}, "time zone"),
        ({"interval_ms": "5m", "jitter_s": "9" * 30}, ""),
        ({"once_at_0": "9999-12-31", "once_at_1": "23:59:59", "interval_ms": "\x00"}, "Null"),
    ],
)  # fmt: skip
def test_says_why_there_are_no_fire_times(
    db: Any, login: Callable[..., Any], frozen: None, fields: dict[str, str], words: str
) -> None:
    shown = asked(login(), **fields)
    assert not shown["fires"]
    assert words in " ".join(shown["problems"])
    assert shown["problems"]


@pytest.mark.parametrize("key", ["", "x", "-1", "9" * 40, "٣", "1 OR 1=1"])
def test_any_monitor_parameter_is_harmless(db: Any, login: Callable[..., Any], key: str) -> None:
    assert len(asked(login(), interval_ms="5m", monitor=key)["fires"]) == 10


def test_asks_the_database_for_the_user_only(db: Any, login: Callable[..., Any]) -> None:
    from django.test.utils import CaptureQueriesContext

    browser = login()
    asked(browser, interval_ms="5m")
    with CaptureQueriesContext(db) as queries:
        asked(browser, interval_ms="5m", cron="", monitor="7")
    tables = {table for query in queries for table in re.findall(r'FROM "(\w+)"', query["sql"])}
    assert tables == {"django_session", "auth_user"}


def test_notes_a_task_that_nobody_here_knows(db: Any, login: Callable[..., Any]) -> None:
    from celery import current_app

    @current_app.task(name="known.here")
    def here() -> None: ...

    try:
        browser = login()
        unknown = asked(browser, interval_ms="5m", task="known.her")
        known = asked(browser, interval_ms="5m", task="known.here")
    finally:
        current_app.tasks.pop("known.here")
    assert any("No task “known.her” is registered" in note for note in unknown["notes"])
    assert not any("No task" in note for note in known["notes"])
    assert not any("No task" in note for note in asked(browser, interval_ms="5m")["notes"])


def test_is_shown_without_a_script_after_a_refused_save(db: Any, login: Callable[..., Any]) -> None:
    typed = PLAIN | {
        "name": "a",
        "task": "t",
        "interval_ms": "5m",
        "kwargs": "{",
        "misfire": "auto",
        "overlap": "allow",
    }
    page = login().post("/admin/wheelbeat/monitor/add/", typed).content.decode()
    assert page.count("data-fire-ms=") == 10
    assert "every 5m" in page
    refused = login("bob").post("/admin/wheelbeat/monitor/add/", typed | {"interval_ms": "soon"}).content.decode()
    assert "data-fire-ms=" not in refused
    assert "Correct the schedule first." in refused


def test_only_people_who_may_see_monitors_may_ask(db: Any, login: Callable[..., Any]) -> None:
    from django.test import Client

    query = f"{URL}?interval_ms=5m&timezone=UTC&day_rule=and"
    assert Client().get(query).status_code == 302
    assert login("eve", only=("view_beat",)).get(query).status_code == 403
    assert login("viewer", only=("view_monitor",)).get(query).status_code == 200
    assert login("adder", only=("add_monitor",)).get(query).status_code == 200
