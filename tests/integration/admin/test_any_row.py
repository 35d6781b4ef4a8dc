"""A row with odd values is a problem of that row alone. No page, form or import fails because of it."""

from __future__ import annotations

import csv
import io
import json
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.site.databases import rolled_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIST = "/admin/wheelbeat/monitor/"
GOOD = {"name": "good", "task": "t", "interval": "5m"}

CRON = st.text(alphabet="0123456789*,-/#?LlWw@ abcfimnorstuRy", max_size=24) | st.lists(
    st.sampled_from(["*", "5,*", "*/0", "1-1", "59-0/7", "L", "5L", "friL", "mon#6", "7/2", "*/7,*", "00", "60", "R"]),
    min_size=5, max_size=5,
).map(" ".join)  # fmt: skip
ZONE = st.sampled_from(["UTC", "Europe/Berlin", "localtime", "Europe", "../../etc/passwd", "posixrules", "", "é"])
JSON_TEXT = st.sampled_from([
    "[]", "{}", '{"a": 01}', '{"a": NaN}', '{"a": 1e999}', '{"a": {"__type__": "datetime", "__value__": "x"}}',
    "[" * 9_000,
    '{"__type__": "decimal", "__value__": "1e99999999"}', '{"link": {"task": 5}}', '{"eta": "x"}', '{"expires": 1}',
    '["\\ud800"]', "5", "null", "'", '{"wheelbeat_job": "x"}',
])  # fmt: skip
ANY = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
TEXTS = {
    "name": ANY,
    "task": ANY,
    "args": JSON_TEXT | ANY,
    "kwargs": JSON_TEXT | ANY,
    "headers": JSON_TEXT | ANY,
    "options": JSON_TEXT | ANY,
    "cron": CRON | ANY,
    "timezone": ZONE | ANY,
    "solar_event": st.sampled_from(["", "sunrise", "moonrise"]),
    "tags": ANY,
    "queue": ANY,
    "description": ANY,
    "pause_reason": ANY,
}
NUMBERS = {
    "interval_ms": st.none() | st.sampled_from([1, 60_000, 2**62]),
    "jitter_s": st.none() | st.sampled_from([0, 7, 2**31 - 1]),
    "priority": st.none() | st.sampled_from([0, 255]),
    "expires_s": st.none() | st.sampled_from([1e-300, 0.5, 1e300]),
    "solar_latitude": st.none() | st.sampled_from([-90.0, 0.0, 90.0]),
    "solar_longitude": st.none() | st.sampled_from([-180.0, 12.5]),
    "once_at": st.none() | st.sampled_from(["0001-01-01 00:00:00", "2030-01-01 00:00:00", "9999-12-31 23:59:59"]),
    "start_at": st.none() | st.sampled_from(["0001-01-01 00:00:00", "9999-12-31 23:59:59"]),
    "end_at": st.none() | st.sampled_from(["0001-01-01 00:00:00", "9999-12-31 23:59:59"]),
}
INSTANTS = {"once_at", "start_at", "end_at"}
ROWS = st.fixed_dictionaries(TEXTS | NUMBERS)
CRON_ROW = dict.fromkeys(TEXTS, "") | dict.fromkeys(NUMBERS) | {"name": "n", "task": "t"}
CRON_ROW |= {"args": "[]", "kwargs": "{}", "headers": "{}", "options": "{}", "timezone": "UTC", "cron": "5,* * * * *"}
UNHURRIED = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@contextmanager
def undone() -> Iterator[None]:
    from django.db import transaction

    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def write(row: dict[str, Any]) -> int | None:
    """Write a row by SQL, behind every check but the database's own; None where that refuses it."""
    from django.db import DatabaseError, connection, transaction

    columns = {name: value for name, value in row.items() if value is not None}
    names = ", ".join(columns)
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO wheelbeat_monitor ({names}) VALUES ({', '.join(['%s'] * len(columns))}) RETURNING id",
                list(columns.values()),
            )
            return int(cursor.fetchone()[0])
    except DatabaseError:
        return None


def kinds_kept_apart(row: dict[str, Any]) -> dict[str, Any]:
    """Leave one schedule of several, so that the database takes the row."""
    if row["cron"]:
        return row | {
            "interval_ms": None,
            "once_at": None,
            "solar_event": "",
            "solar_latitude": None,
            "solar_longitude": None,
        }
    if row["interval_ms"]:
        return row | {"once_at": None, "solar_event": "", "solar_latitude": None, "solar_longitude": None}
    return row


@example(CRON_ROW)
@given(row=ROWS)
@UNHURRIED
def test_every_page_shows_every_row(either: Any, login: Callable[..., Any], row: dict[str, Any]) -> None:
    assert_that_pages_show(kinds_kept_apart(row), login)


def assert_that_pages_show(row: dict[str, Any], login: Callable[..., Any]) -> None:
    from django.contrib.auth.models import User

    with undone():
        browser = login(f"ann{User.objects.count()}")
        pk = write(row)
        assert write(CRON_ROW | {"name": "good one", "cron": "0 9 * * *"}) is not None
        if pk is None:
            return
        page = browser.get(LIST)
        assert {monitor.pk for monitor in page.context["cl"].result_list} >= {pk}
        assert next(m for m in page.context["cl"].result_list if m.name == "good one").next_fire_ms is not None
        for path in (f"{pk}/change/", f"{pk}/runs/", f"{pk}/history/", f"{pk}/delete/", "scheduler/?upcoming=1"):
            assert browser.get(f"{LIST}{path}").status_code == 200, path
        chosen = {"_selected_action": [pk], "index": "0"}
        assert (
            browser.post(LIST, chosen | {"action": "pause_monitors", "confirmed": "1", "reason": "r"}).status_code
            == 302
        )
        edit = {"action": "edit_monitors", "confirmed": "1", "queue": "q"}
        assert browser.post(LIST, chosen | edit).status_code == 302
        for action in ("export_as_csv", "export_as_json_lines"):
            b"".join(browser.post(LIST, chosen | {"action": action}).streaming_content)


ODD = st.sampled_from([b"\xff\x00", "text", -1, 0.5, 2**62, None, ""])


@given(row=st.dictionaries(
    st.sampled_from(sorted((TEXTS | NUMBERS | {"one_off": 0, "enabled": 0, "expires_next": 0}).keys() - INSTANTS)), ODD,
    min_size=1, max_size=4,
))  # fmt: skip
@UNHURRIED
def test_values_of_other_types_which_sqlite_stores_are_shown(
    db: Any, login: Callable[..., Any], row: dict[str, Any]
) -> None:
    assert_that_pages_show(CRON_ROW | {"cron": "", "interval_ms": 60_000} | row, login)


@example(CRON_ROW)
@given(row=ROWS)
@UNHURRIED
def test_the_form_and_its_preview_answer_every_text(db: Any, login: Callable[..., Any], row: dict[str, Any]) -> None:
    from django.contrib.auth.models import User
    from django.core.exceptions import ValidationError

    from django_wheelbeat.models import Monitor

    with undone():
        browser = login(f"ann{User.objects.count()}")
        typed = {name: "" if value is None else str(value) for name, value in row.items()}
        typed |= {"day_rule": "and", "misfire": "auto", "overlap": "allow", "enabled": "on"}
        for instant in INSTANTS:
            typed[f"{instant}_0"], _, typed[f"{instant}_1"] = typed.pop(instant).partition(" ")
        typed["interval_ms"] = f"{typed['interval_ms']}ms" if typed["interval_ms"] else ""
        assert browser.get(f"{LIST}preview/", typed).status_code in (200, 429)
        posted = browser.post(f"{LIST}add/", typed)
        assert posted.status_code == 302 or posted.context["adminform"].form.errors
        with_instants = {name: value for name, value in row.items() if not name.endswith("_at")}
        with suppress(ValidationError):
            Monitor(**with_instants).full_clean()


FIELD_NAMES = {"interval_ms": "interval", "expires_s": "expires"}


@example(CRON_ROW)
@given(row=ROWS)
@UNHURRIED
def test_every_line_is_imported_or_refused_by_itself(db: Any, row: dict[str, Any]) -> None:
    from django_wheelbeat.models import Monitor
    from django_wheelbeat.transfer.files import read
    from django_wheelbeat.transfer.imports import Importer

    record = {FIELD_NAMES.get(name, name): value for name, value in row.items()}
    lines = [json.dumps(record), json.dumps(GOOD)]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(record), restval="")
    writer.writeheader()
    writer.writerows([record, {"name": "good", "task": "t", "interval": "5m", "timezone": "UTC"}])
    for source, form in ((lines, "jsonl"), (io.StringIO(text.getvalue(), newline=""), "csv")):
        with undone():
            report = Importer("default").apply(read(source, form))
            assert report.created + report.refused == 2, report.problems
            assert Monitor.objects.filter(name="good").exists()


@pytest.mark.parametrize("broken", ["next_fire", "describe", "warnings"])
def test_an_error_of_our_own_code_is_the_problem_of_its_row(
    db: Any, login: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    from celery_wheelbeat.schedules.cron import Cron
    from django_wheelbeat.models import Monitor

    whole = getattr(Cron, broken)

    def breaks(self: Cron, *arguments: Any) -> Any:
        if self.expression == "1 1 * * *":
            raise ZeroDivisionError("of all things")
        return whole(self, *arguments)

    monkeypatch.setattr(Cron, broken, breaks)
    bad = Monitor.objects.create(name="bad", task="t", cron="1 1 * * *")
    Monitor.objects.create(name="good", task="t", cron="2 1 * * *")
    browser = login()
    shown = {monitor.name: monitor.next_fire_ms for monitor in browser.get(LIST).context["cl"].result_list}
    assert shown["good"] is not None
    for path in (f"{bad.pk}/change/", f"{bad.pk}/runs/", "scheduler/?upcoming=1"):
        page = browser.get(f"{LIST}{path}")
        assert page.status_code == 200
    preview = browser.get(f"{LIST}preview/", {"cron": "1 1 * * *", "timezone": "UTC", "day_rule": "and", "task": "t"})
    output = str(preview.json())
    assert ("of all things" in output) == (broken != "describe")
    if broken == "describe":
        assert "unreadable schedule" in output


NOW = datetime(2026, 11, 30, tzinfo=UTC)
CRON_FIELD = st.sampled_from(["*", "*,5", "mon,*", "5,*", "61", "*/0", "", "é", "[0]", "a" * 60]) | CRON


@pytest.mark.django_celery_beat
@example({"minute": "*,5", "args": "[]", "period": "hours", "zone": "UTC"})
@given(st.fixed_dictionaries({
    "minute": CRON_FIELD.map(lambda text: text[:240]),
    "args": JSON_TEXT | ANY,
    "period": st.sampled_from(["days", "hours", "microseconds", "fortnights", ""]),
    "zone": ZONE,
}))  # fmt: skip
@UNHURRIED
def test_every_periodic_task_is_imported_or_refused_by_itself(sqlite_with_dcb: Any, drawn: dict[str, Any]) -> None:
    from django_wheelbeat.transfer.celery_beat import periodic_tasks
    from django_wheelbeat.transfer.celery_beat_tables import CrontabSchedule, IntervalSchedule, PeriodicTask
    from django_wheelbeat.transfer.imports import Importer

    rest = {"hour": "*", "day_of_month": "*", "month_of_year": "*", "day_of_week": "*"}
    columns = {
        "task": "t", "kwargs": drawn["args"], "headers": drawn["args"], "one_off": False, "enabled": True,
        "total_run_count": 0, "date_changed": NOW, "description": "", "args": drawn["args"],
    }  # fmt: skip
    with rolled_back(sqlite_with_dcb):
        cron = CrontabSchedule.objects.create(minute=drawn["minute"], timezone=drawn["zone"], **rest)
        every = IntervalSchedule.objects.create(every=2**31 - 1, period=drawn["period"])
        hourly = CrontabSchedule.objects.create(minute="0", timezone="UTC", **rest)
        good = columns | {"args": "[]", "kwargs": "{}", "headers": "{}"}
        PeriodicTask.objects.create(name="cron", crontab=cron, **columns)
        PeriodicTask.objects.create(name="every", interval=every, **columns)
        PeriodicTask.objects.create(name="good", crontab=hourly, **good)
        given_tasks = periodic_tasks("default", (), lambda _name, _text: None, NOW)
        report = Importer("default").apply(given_tasks)
        assert report.created + report.refused == 3, report.problems
        assert names_stored() >= {"good"}


JSON = st.recursive(
    st.none() | st.booleans() | st.sampled_from([0, -1, 1.5, 10**400]) | ANY,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["__type__", "every", "minute", "timezone", "year", "a"]), inner, max_size=4)
    ),
    max_leaves=8,
)
SCHEDULE = st.fixed_dictionaries(
    {"__type__": st.sampled_from(["crontab", "interval", "rrule", "datetime"])},
    optional={"every": JSON, "relative": JSON, "minute": JSON, "hour": JSON},
)
DEFINITION = st.fixed_dictionaries(
    {"name": ANY | st.just("drawn"), "task": JSON | st.just("t"), "schedule": SCHEDULE | JSON},
    optional={"args": JSON, "kwargs": JSON, "options": JSON, "enabled": JSON},
)


@pytest.mark.redis
@given(text=DEFINITION.map(json.dumps) | JSON_TEXT | ANY, meta=JSON.map(json.dumps) | ANY)
@UNHURRIED
def test_every_entry_of_redbeat_is_imported_or_refused_by_itself(db: Any, redis_url: str, text: str, meta: str) -> None:
    from redis import Redis

    from django_wheelbeat.transfer.imports import Importer
    from django_wheelbeat.transfer.redbeat import redbeat_entries

    good = {"name": "good", "task": "t", "schedule": {"__type__": "interval", "every": 60.0, "relative": False}}
    with undone(), Redis.from_url(redis_url, decode_responses=True) as client:
        client.hset("redbeat:drawn", mapping={"definition": text, "meta": meta})
        client.hset("redbeat:good", mapping={"definition": json.dumps(good)})
        client.zadd("redbeat::schedule", {"redbeat:drawn": 1, "redbeat:good": 1})
        entries = redbeat_entries(client, "redbeat:", "UTC", (), lambda _name, _text: None)
        report = Importer("default").apply(entries)
        assert report.created + report.refused == 2, report.problems
        assert names_stored() >= {"good"}


def names_stored() -> set[str]:
    from django_wheelbeat.models import Monitor

    return set(Monitor.objects.values_list("name", flat=True))
