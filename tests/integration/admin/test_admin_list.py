"""The list of monitors: what a page asks the database, what it shows for any row, and how it is narrowed."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

LIST = "/admin/wheelbeat/monitor/"
BEATS = "/admin/wheelbeat/beat/"
MANY = 100_000
NARROWED = (
    "", "?o=-1", "?task=shop.task_3", "?task=none", "?queue=q1", "?queue=none", "?tag=prod", "?tag=none",
    "?tag=late", "?tag=late&p=40", "?tag=late&o=-1", "?tag=late&enabled__exact=1", "?tag=prod&p=100",
    "?kind=interval", "?kind=cron", "?kind=once", "?kind=solar", "?band=seconds", "?band=days",
    "?enabled__exact=1", "?enabled__exact=0", "?incident=now", "?quarantined=yes", "?quarantined=no",
    "?task=shop.task_3&queue=q1&enabled__exact=0",
)  # fmt: skip
"""Frequent, rare and absent values of every filter, and one that only the last of the names have."""


def fill(count: int, **columns: Any) -> None:
    from django_wheelbeat.models import Monitor

    Monitor.objects.bulk_create(
        [
            Monitor(**({"name": f"m{i:06}", "task": "shop.check", "interval_ms": 60_000} | columns))
            for i in range(count)
        ],
        batch_size=1_000,
    )


def names(response: Any) -> list[str]:
    assert response.status_code == 200
    return [monitor.name for monitor in response.context["cl"].result_list]


def test_a_hundred_thousand_monitors_cost_a_few_queries(either: Any, login: Callable[..., Any]) -> None:
    from django.test.utils import CaptureQueriesContext

    numbers = (
        f"SELECT n FROM generate_series(1, {MANY}) AS numbers (n)"
        if either.vendor == "postgresql"
        else f"WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {MANY}) "
        "SELECT n FROM numbers"
    )
    with either.cursor() as cursor:
        cursor.execute(
            "INSERT INTO wheelbeat_monitor (name, task, interval_ms, queue, tags) "
            "SELECT 'shop ' || n, 'shop.task_' || (n % 4), 1000 * (n % 900 + 1), 'q' || (n % 3), "
            "'eu,prod' || CASE WHEN CAST(n AS text) >= '96' THEN ',late' ELSE '' END "
            f"FROM ({numbers}) AS rows_to_make"
        )
        if either.vendor == "postgresql":
            cursor.execute("ANALYZE wheelbeat_monitor")
    browser = login()
    for query in (
        "",
        "?q=shop+77",
        "?task=shop.task_3&enabled__exact=1",
        "?tag=prod&kind=interval&band=minutes",
        "?p=500",
    ):
        with CaptureQueriesContext(either) as queries:
            page = browser.get(LIST + query)
        assert len(names(page)) == 100, query
        assert len(queries) <= 16, query
        assert not [sql for q in queries if "kwargs" in (sql := q["sql"])], "a list must not read arguments"
    if either.vendor == "postgresql":
        for query in NARROWED:
            assert_bounded(either, browser, query)
        last = browser.get(LIST + "?p=500")
        assert len(names(last)) == 100, "the deepest page that is offered"
        assert last.context["cl"].paginator.num_pages == 500
        assert browser.get(LIST + "?p=501").status_code == 302
    text = browser.get(LIST).content.decode()
    assert ("about 100000 monitors" if either.vendor == "postgresql" else "100000 monitors") in text
    assert "more than 10000 monitors" in browser.get(LIST + "?enabled__exact=1").content.decode()


def assert_bounded(connection: Any, browser: Any, query: str) -> None:
    """Fail if a statement of the page reads the table, and not only what it needs for a page and a bounded count."""
    from support.site.plans import statements_explained

    with statements_explained(connection) as statements:
        names(browser.get(LIST + query))
    asked = [(touched, sql) for touched, sql in statements if 'FROM "wheelbeat_monitor"' in sql]
    assert 4 <= len(asked) <= 8, "count, page, tasks, queues; each of both may be asked three times"
    for touched, sql in asked:
        assert touched <= 0.7 * MANY, f"{query} touches {touched} rows: {sql}"


@pytest.mark.postgres
@pytest.mark.parametrize("order", ["name", "-name", "id", "-id"])
@pytest.mark.parametrize("through", [5, 40, 1_000])
def test_pages_are_the_same_wherever_their_rows_are_found(
    pg: Any, login: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, order: str, through: int
) -> None:
    from django_wheelbeat.admin import paginator as selections
    from django_wheelbeat.admin.monitor import MonitorAdminMixin
    from django_wheelbeat.models import Monitor

    monkeypatch.setattr(selections, "SCANNED_ROWS", through)
    monkeypatch.setattr(selections, "SORTED_MAX", 20)
    monkeypatch.setattr(MonitorAdminMixin, "list_per_page", 10)
    for number in range(120):
        tag = "late" if number >= 95 else "even" if number % 2 == 0 else "few" if number % 13 == 0 else ""
        Monitor.objects.create(name=f"{'Zaä'[number % 3]}{number * 37 % 120:03}", task="t", interval_ms=1_000, tags=tag)
    place = 1 + MonitorAdminMixin.list_display.index(order.lstrip("-"))
    browser = login()
    for tag in ("late", "even", "few"):
        wanted = list(Monitor.objects.tagged(tag).order_by(order))
        seen = []
        for page in range(1, -(-len(wanted) // 10) + 1):
            seen += names(browser.get(f"{LIST}?o={'-' * (order[0] == '-')}{place}&tag={tag}&p={page}"))
        assert seen == [monitor.name for monitor in wanted]


def documented_indexes() -> list[str]:
    page = (Path(__file__).parents[3] / "docs/howto/search-among-millions.md").read_text()
    return [block.partition("```")[0].replace(" CONCURRENTLY", "") for block in page.split("```sql\n")[1:]]


@pytest.mark.postgres
def test_the_documented_indexes_serve_the_pages_of_django_s_history(pg: Any, login: Callable[..., Any]) -> None:
    from support.site.plans import statements_explained

    from django_wheelbeat.models import Monitor

    fill(1)
    _, statements = documented_indexes()
    browser = login()
    with pg.cursor() as cursor:
        cursor.execute(statements)
        cursor.execute(
            "INSERT INTO django_admin_log (action_time, user_id, content_type_id, object_id, object_repr, action_flag,"
            " change_message) SELECT now() - n * interval '1 second', u.id, t.id, n::text, 'm', 2, ''"
            " FROM generate_series(1, 20000) n, auth_user u, django_content_type t"
            " WHERE t.app_label = 'wheelbeat' AND t.model = 'monitor'"
        )
        cursor.execute("ANALYZE django_admin_log")
    key = Monitor.objects.get().pk
    for path in ("/admin/", f"{LIST}{key}/history/"):
        with statements_explained(pg) as explained:
            assert browser.get(path).status_code == 200
        asked = [touched for touched, sql in explained if 'FROM "django_admin_log"' in sql]
        assert asked, path
        assert max(asked) < 100, path


@pytest.mark.postgres
def test_the_documented_index_serves_the_search(pg: Any, login: Callable[..., Any]) -> None:
    from django.test.utils import CaptureQueriesContext

    statements, _ = documented_indexes()
    with pg.cursor() as cursor:
        cursor.execute(
            "INSERT INTO wheelbeat_monitor (name, task, interval_ms) "
            "SELECT md5(n::text), 'shop.task', 60000 FROM generate_series(1, 20000) AS numbers (n)"
        )
        cursor.execute(statements)
        cursor.execute("ANALYZE wheelbeat_monitor")
        browser = login()
        with CaptureQueriesContext(pg) as queries:
            assert names(browser.get(f"{LIST}?q=c4ca4238"))
        searched = [entry["sql"] for entry in queries if "LIKE" in entry["sql"]]
        assert len(searched) == 2, "count and page"
        for sql in searched:
            cursor.execute("EXPLAIN " + sql)
            plan = "\n".join(line for (line,) in cursor.fetchall())
            assert "wheelbeat_monitor_name_part" in plan, plan
            assert "wheelbeat_monitor_task_part" in plan, plan


def test_the_number_of_queries_does_not_depend_on_the_rows(db: Any, login: Callable[..., Any]) -> None:
    from django.test.utils import CaptureQueriesContext

    browser = login()
    counts = []
    for more in (1, 99):
        fill(more, task=f"t{more}") if more == 1 else fill_named("n", more)
        with CaptureQueriesContext(db) as queries:
            browser.get(LIST)
        counts.append(len(queries))
    assert counts[0] == counts[1]


def fill_named(prefix: str, count: int) -> None:
    from django_wheelbeat.models import Monitor

    Monitor.objects.bulk_create(
        Monitor(name=f"{prefix}{i}", task="t", cron="*/5 * * * *", timezone="Asia/Tokyo") for i in range(count)
    )


def test_a_row_that_cannot_be_read_hides_no_other(db: Any, login: Callable[..., Any]) -> None:
    from django_wheelbeat.models import Monitor

    rows = {
        "weekday by name": {"cron": "0 2 * * monday"},
        "long step": {"cron": "*/90 * * * *"},
        "broken cron": {"cron": "every tuesday"},
        "unknown zone": {"cron": "0 2 * * *", "timezone": "Mars/Base"},
        "broken arguments": {"interval_ms": 1_000, "kwargs": "{{{"},
        "unknown event": {"solar_event": "eclipse", "solar_latitude": 1.0, "solar_longitude": 1.0},
        "too long an interval": {"interval_ms": 2**62},
        "plain": {"interval_ms": 60_000},
    }
    Monitor.objects.bulk_create(Monitor(name=name, task="t", **columns) for name, columns in rows.items())
    browser = login()
    page = browser.get(LIST)
    assert set(names(page)) == rows.keys()
    text = page.content.decode()
    assert "unreadable cron “every tuesday”" in text
    assert re.search(r"every 1m</td><td[^>]*>(<time[^>]*>)?\w{3} \d{4}-\d\d-\d\d", text), (
        "the good row shows its next run"
    )
    for monitor in Monitor.objects.all():
        assert browser.get(f"{LIST}{monitor.pk}/change/").status_code == 200, monitor.name


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("task=shop.check", {"often", "hourly", "hurried"}),
        ("queue=slow", {"nightly"}),
        ("tag=eu", {"often", "nightly"}),
        ("tag=e", set()),
        ("kind=interval", {"often", "hourly", "hurried"}),
        ("kind=cron", {"nightly", "paused"}),
        ("band=seconds", {"often"}),
        ("band=hours", {"hourly", "hurried"}),
        ("quarantined=yes", {"hourly"}),
        ("quarantined=no", {"often", "nightly", "hurried", "paused"}),
        ("incident=now", {"hurried"}),
        ("enabled__exact=0", {"paused"}),
        ("q=ight", {"nightly"}),
        ("q=shop.ch", {"often", "hourly", "hurried"}),
        ("kind=nonsense&band=&quarantined=maybe&incident=then", {"often", "nightly", "hourly", "hurried", "paused"}),
        ("task=%00", {"often", "nightly", "hourly", "hurried", "paused"}),
        ("tag=%27%20OR%201%3D1", set()),
    ],
)
def test_narrows(either: Any, login: Callable[..., Any], query: str, expected: set[str]) -> None:
    from django.utils import timezone

    from django_wheelbeat.models import Monitor, Quarantine

    soon = timezone.now() + timedelta(hours=1)
    shop = {"task": "shop.check"}
    make = Monitor.objects.create
    make(name="often", interval_ms=30_000, tags="eu,prod", **shop)
    make(name="nightly", task="t", cron="0 3 * * *", queue="slow", tags="eu")
    hourly = make(name="hourly", interval_ms=3_600_000, tags="europe", **shop)
    make(name="hurried", interval_ms=3_600_000, incident_interval_ms=1_000, incident_until=soon, **shop)
    make(name="paused", task="t", cron="0 3 * * *", enabled=False)
    Quarantine.objects.create(job_key=f"monitor:{hourly.pk}", definition_hash="x", reason="unknown task")
    Quarantine.objects.create(job_key="entry:cleanup", definition_hash="x", reason="unknown task")
    assert set(names(login().get(f"{LIST}?{query}"))) == expected


def test_says_why_a_monitor_does_not_fire(db: Any, login: Callable[..., Any]) -> None:
    from django.utils import timezone

    from django_wheelbeat.models import Monitor, Quarantine

    bad = Monitor.objects.create(name="bad", task="t", interval_ms=1_000)
    Quarantine.objects.create(job_key=f"monitor:{bad.pk}", definition_hash="x", reason="no such task: <t>")
    Monitor.objects.create(name="off", task="t", interval_ms=1_000, enabled=False, pause_reason="maintenance")
    done = Monitor.objects.create(name="done", task="t", once_at=timezone.now())
    Monitor.objects.filter(pk=done.pk).update(finished_at=timezone.now())
    page = login().get(LIST)
    shown = {monitor.name: monitor.next_fire_ms for monitor in page.context["cl"].result_list}
    assert shown == {"bad": None, "off": None, "done": None}, "none of them has a next run"
    text = page.content.decode()
    for words in ("no such task: &lt;t&gt;", "quarantined", "maintenance", "paused", "finished"):
        assert words in text


@pytest.mark.parametrize("page", [LIST, f"{LIST}add/", "/admin/wheelbeat/", "/admin/wheelbeat/change/"])
def test_a_banner_shows_while_no_beat_reports(db: Any, login: Callable[..., Any], page: str) -> None:
    from django.utils import timezone

    from django_wheelbeat.models import Beat

    browser = login()
    assert "No beat has ever reported" in browser.get(page).content.decode()
    beat = Beat.objects.create(
        beat_id="b", namespace="n", host="h", pid=1, version="1", started_at=timezone.now(), seen_at=timezone.now()
    )
    assert "wheelbeat-banner" not in browser.get(page).content.decode()
    Beat.objects.filter(pk=beat.pk).update(seen_at=timezone.now() - timedelta(seconds=11))
    assert "No beat has reported for" in browser.get(page).content.decode()


def test_the_rows_of_beats_and_triggers_are_only_shown(db: Any, login: Callable[..., Any]) -> None:
    from django.utils import timezone

    from django_wheelbeat.models import Beat, Change, Monitor, Quarantine

    Monitor.objects.create(name="a", task="t", interval_ms=1_000)
    Quarantine.objects.create(job_key="monitor:1", definition_hash="x", reason="because")
    now = timezone.now()
    status = '{"jobs": [1, "<b>"]}'
    Beat.objects.create(
        beat_id="b", namespace="n", host="h", pid=1, version="1", started_at=now, seen_at=now, status=status, marks="?"
    )
    browser = login()
    assert "&quot;jobs&quot;: [\n    1,\n    &quot;&lt;b&gt;&quot;" in browser.get(f"{BEATS}b/change/").content.decode()
    for kind, key in (("change", Change.objects.get().pk), ("beat", "b"), ("quarantine", "monitor_3A1")):
        base = f"/admin/wheelbeat/{kind}/"
        assert browser.get(base).status_code == 200
        assert browser.get(f"{base}{key}/change/").status_code == 200
        assert browser.post(f"{base}{key}/change/", {}).status_code == 403
        assert browser.get(f"{base}add/").status_code == 403
        assert browser.post(f"{base}{key}/delete/", {"post": "yes"}).status_code == 403
    assert (Change.objects.count(), Beat.objects.count(), Quarantine.objects.count()) == (1, 1, 1)
