"""Every page of the admin on a million monitors, and a bulk pause under a running beat: ``python benchmarks/admin.py``.

The pages are asked for through Django's test client, rendering included. The floor is processor time, of the web
process and its database session: what an idle machine would take. Beside it stands how many rows the page's statements
touch at most, by ``EXPLAIN ANALYZE``: what does not grow with the table stays far below its size.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from monitor_table import SETTINGS, filled_by_sql
from report import Report, cpu_s

MONITORS_URL = "/admin/wheelbeat/monitor/"
PAGE_MAX_S = 0.3
PAUSE_MAX_S = 30
REPEATS = 5
FAST = 200
"""Monitors that fire each second, for the lateness of the beat."""
BULK_SHARE = 5
"""Every fifth monitor is paused in bulk."""

SEARCH_INDEX = Path(__file__).parents[1] / "docs" / "howto" / "search-among-millions.md"

# Names come in the order of their customers and so do tags: what is looked for may be all at the end of the list.
FILL = """
    INSERT INTO wheelbeat_monitor (name, task, kwargs, interval_ms, cron, once_at, solar_event, solar_latitude,
        solar_longitude, queue, tags, enabled)
    SELECT 'customer ' || lpad((n / 250)::text, 5, '0') || ' / ' || left(md5(n::text), 8),
        CASE WHEN n % 50000 = 7 THEN 'bench.rare' ELSE 'bench.check_' || n % 7 END,
        '{"url": "https://customer-' || n / 250 || '.example.com/' || left(md5(n::text), 20) || '", "timeout_s": 10}',
        CASE WHEN n % 50 = 1 OR n % 20000 IN (2, 3) THEN NULL WHEN n % 100000 = 4 THEN 30000 ELSE 86400000 END,
        CASE WHEN n % 50 = 1 THEN (n % 60) || ' 3 * * *' ELSE '' END,
        CASE WHEN n % 20000 = 2 THEN timestamptz '2040-01-01' + n * interval '1 second' END,
        CASE WHEN n % 20000 = 3 THEN 'sunrise' ELSE '' END,
        CASE WHEN n % 20000 = 3 THEN 50 END, CASE WHEN n % 20000 = 3 THEN 10 END,
        CASE WHEN n % 5 = 0 THEN 'bulk' WHEN n % 5 = 1 THEN 'other' WHEN n % 100000 = 9 THEN 'rare' ELSE '' END,
        concat_ws(',', CASE WHEN n % 2 = 0 THEN 'eu' END, CASE WHEN n % 100000 = 11 THEN 'rare' END,
            CASE WHEN n > %(monitors)s * 0.97 THEN 'zz-last' END),
        n % 20000 <> 6
    FROM generate_series(1, %(monitors)s) n
"""
BESIDE = """
    INSERT INTO wheelbeat_monitor (name, task, interval_ms)
    SELECT 'fast ' || n, 'proj.note', 1000 FROM generate_series(1, {fast}) n;
    UPDATE wheelbeat_monitor SET incident_interval_ms = 60000, incident_until = now() + interval '1 hour'
    WHERE id % 50000 = 10 AND interval_ms > 60000;
    INSERT INTO wheelbeat_quarantine (job_key, definition_hash, reason)
    SELECT 'monitor:' || n * 1000, 'x', 'no such task' FROM generate_series(1, 500) n;
    INSERT INTO wheelbeat_changelog (monitor_id, operation, at, actor)
    SELECT n, 'U', now() - interval '1 day', 'ann' FROM generate_series(1, {monitors}) n;
    INSERT INTO wheelbeat_audit (monitor_id, operation, at, changes, actor)
    SELECT n, 'U', now() - n * interval '1 second', '{{"queue": ["a", "b"]}}', 'user ' || n % 9
    FROM generate_series(1, {monitors}) n;
    ANALYZE;
"""
HISTORY = """
    INSERT INTO django_admin_log
        (action_time, user_id, content_type_id, object_id, object_repr, action_flag, change_message)
    SELECT now() - interval '1 day', %(user)s, t.id, n::text, 'customer', 2, 'Paused.'
    FROM generate_series(1, %(monitors)s) n, django_content_type t
    WHERE t.app_label = 'wheelbeat' AND t.model = 'monitor'
"""

PAGES = {
    "the start page": "@@",
    "the list": "",
    "the list, sorted the other way": "?o=-1",
    "the list, page 100": "?p=100",
    "the list, the last page that is linked": "?p={last}",
    "filter: enabled": "?enabled__exact=1",
    "filter: paused, rare": "?enabled__exact=0",
    "filter: task, frequent": "?task=bench.check_3",
    "filter: task, rare": "?task=bench.rare",
    "filter: task, absent": "?task=bench.absent",
    "filter: queue, frequent": "?queue=bulk",
    "filter: queue, rare": "?queue=rare",
    "filter: tag, frequent": "?tag=eu",
    "filter: tag, the last three percent of the names": "?tag=zz-last",
    "filter: tag, rare": "?tag=rare",
    "filter: tag, absent": "?tag=absent",
    "filter: interval schedules": "?kind=interval",
    "filter: cron schedules, two percent": "?kind=cron",
    "filter: once, rare": "?kind=once",
    "filter: solar, rare": "?kind=solar",
    "filter: under a minute, rare": "?band=seconds",
    "filter: hours, absent": "?band=hours",
    "filter: a day and more": "?band=days",
    "filter: in quarantine": "?quarantined=yes",
    "filter: not in quarantine": "?quarantined=no",
    "filter: in an incident": "?incident=now",
    "filter: four at once": "?enabled__exact=1&task=bench.check_3&queue=bulk&tag=eu",
    "filter: paused with a rare tag": "?enabled__exact=0&tag=rare",
    "search: frequent": "?q=customer",
    "search: rare": "?q=c4ca4238",
    "search: absent": "?q=nowhere-to-be-found",
    "search: two words": "?q=customer+00042",
    "the form of a new monitor": "add/",
    "the form of a monitor": "{key}/change/",
    "the preview": "preview/?interval_ms=5m&timezone=UTC",
    "Django's history of a monitor": "{key}/history/",
    "past runs of a monitor": "{key}/runs/",
    "the page of the scheduler": "scheduler/",
    "the page of incidents": "incidents/",
    "the page of incidents, a frequent tag": "incidents/?tag=eu",
    "the change log": "@change/",
    "the audit": "@audit/",
    "the audit: one user": "@audit/?q=user+3",
    "the audit: absent user": "@audit/?q=nobody",
    "the audit: today": "@audit/?operation=U",
    "the quarantine": "@quarantine/",
    "bulk pause: the page that asks, 200,000 monitors": "POST ?queue=bulk",
}


class Cost(NamedTuple):
    """What a page costs."""

    median_s: float
    cpu_s: float
    """Processor time of the web process and of its database session: what is left of it on an idle machine."""
    worst_s: float
    queries: int
    rows: int
    """Most rows that one of its statements touched."""
    statement: str
    """That statement."""


def cost_of(browser: Any, session: int, path: str) -> Cost:
    """Ask for a page some times, then explain what it asks the database."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext
    from plans import rows_touched

    ask = f"{MONITORS_URL}{path.removeprefix('POST ')}".replace("wheelbeat/monitor/@@", "").replace("monitor/@", "")
    posted = {"action": "pause_monitors", "select_across": "1", "index": "0", "_selected_action": "1"}

    def request() -> Any:
        return browser.post(ask, posted) if path.startswith("POST ") else browser.get(ask)

    request()
    times, cpu = [], time.process_time() + cpu_s(session)
    for _ in range(REPEATS):
        begun = time.perf_counter()
        answer = request()
        times.append(time.perf_counter() - begun)
        if answer.status_code != 200:
            raise SystemExit(f"{ask}: status {answer.status_code} {answer.headers}")
    cpu = (time.process_time() + cpu_s(session) - cpu) / REPEATS
    with CaptureQueriesContext(connection) as queries:
        request()
    touched = [(rows_touched(connection, query["sql"]), query["sql"]) for query in queries]
    rows, statement = max(touched, default=(0, ""))
    return Cost(statistics.median(times), cpu, max(times), len(queries), rows, statement)


def pages(report: Report, browser: Any, only: str) -> list[str]:
    """Measure every page; returns what is too slow."""
    from django.db import connection

    from django_wheelbeat.models import Monitor

    session = connection.connection.info.backend_pid
    key = Monitor.objects.order_by("-pk").values_list("pk", flat=True)[10]
    linked = browser.get(MONITORS_URL).context["cl"].paginator.num_pages
    slow = []
    for what, path in PAGES.items():
        if only and only not in what:
            continue
        cost = cost_of(browser, session, path.format(key=key, last=linked))
        note = f"worst {cost.worst_s * 1000:,.0f} ms; {cost.queries} queries, at most {cost.rows:,} rows in one"
        report.add(what, cost.median_s * 1000, "ms", floor=cost.cpu_s * 1000, note=note)
        if cost.cpu_s > PAGE_MAX_S or cost.rows > 25_000:
            slow.append(what)
            print(f"    ↑ {cost.statement[:1500]}", flush=True)
    return slow


def bulk_action(browser: Any, action: str, query: str, **answer: str) -> tuple[float, int]:
    """Do a bulk action on everything that matches ``query``, all of its steps; returns seconds and requests."""
    data = {"action": action, "select_across": "1", "index": "0", "_selected_action": "1"}
    begun = time.perf_counter()
    page = browser.post(MONITORS_URL + query, data | answer)
    steps = 1
    while page.status_code == 200:
        (token,) = re.findall(r'name="walk" value="([^"]+)"', page.content.decode())
        page = browser.post(MONITORS_URL + query, data | {"walk": token})
        steps += 1
    return time.perf_counter() - begun, steps


def beat_status(connection: psycopg.Connection[Any]) -> dict[str, Any]:
    """Return the status document of the beat; empty as long as there is none."""
    row = connection.execute("SELECT status FROM wheelbeat_beat ORDER BY seen_at DESC LIMIT 1").fetchone()
    return json.loads(row[0]) if row else {}


def bulk_changes(report: Report, browser: Any, url: str, monitors: int) -> None:
    """Pause, resume, edit and delete a fifth of the monitors while a real beat runs on the table."""
    from django.db import connection as site
    from django_settings import database_of
    from processes import DjangoProject, redis_conf
    from services import PrivateRedis

    with (
        tempfile.TemporaryDirectory() as folder,
        PrivateRedis() as broker,
        DjangoProject(Path(folder), redis_conf(broker.url), database=database_of(url)) as project,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        session = site.connection.info.backend_pid
        beat = project.beat()
        beat.wait_for(" jobs loaded", timeout_s=600)
        project.wait_for(
            lambda: beat_status(connection).get("lateness", {}).get("runs", 0) > 10 * FAST, "runs", timeout_s=60
        )
        for what, action, answer in (
            ("pause", "pause_monitors", {"confirmed": "Pause", "reason": "data centre move"}),
            ("resume", "resume_monitors", {}),
            ("edit of the priority", "edit_monitors", {"confirmed": "Change", "priority": "7"}),
            ("delete", "delete_selected", {"confirmed": "Delete", "typed": str(monitors // BULK_SHARE)}),
        ):
            changes = beat_status(connection)["source"]["changes"]
            cpu = time.process_time() + cpu_s(session)
            took_s, steps = bulk_action(browser, action, "?queue=bulk", **answer)
            cpu = time.process_time() + cpu_s(session) - cpu
            wanted = changes + monitors // BULK_SHARE
            begun = time.perf_counter()
            project.wait_for(
                lambda wanted=wanted: beat_status(connection)["source"]["changes"] >= wanted, what, timeout_s=120
            )
            behind_s = time.perf_counter() - begun
            lateness = beat_status(connection)["lateness"]
            of = f"bulk {what} of {monitors // BULK_SHARE:,}, a beat running"
            report.add(of, took_s, "s", floor=cpu, note=f"{steps} requests; in force {behind_s:.1f} s after the last")
            report.add(f"{of}: lateness of runs, p99", lateness["p99_s"], "s", note="of the beat's status row")
        if beat.stop():
            raise SystemExit(f"the beat ended badly:\n{beat.output}")
        status = beat_status(connection)
        report.add("runs not accounted for, drift found", status["runs"]["difference"], "runs")


def main() -> int:
    """Fill, ask, pause, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="five million monitors instead of one")
    parser.add_argument("--monitors", type=int, default=0)
    parser.add_argument("--only", default="", help="pages whose description contains this; nothing is written")
    parser.add_argument("--no-search-index", action="store_true", help="without the index of the how-to")
    given = parser.parse_args()
    monitors = given.monitors or (5_000_000 if given.full else 1_000_000)
    report = Report("admin", full=given.full, monitors=monitors)
    from django_site import as_default, set_up_django, site_database
    from services import PrivatePostgres

    set_up_django()
    with PrivatePostgres(**{**SETTINGS, "autovacuum": "on"}) as server, site_database(server.url) as connection:
        with psycopg.connect(server.url, autocommit=True) as writer:
            begun = time.perf_counter()
            with filled_by_sql(writer):
                writer.execute(FILL.replace("%(monitors)s", str(monitors)))
            writer.execute(BESIDE.format(fast=FAST, monitors=monitors))
            if not given.no_search_index:
                page = SEARCH_INDEX.read_text()
                for statement in page.partition("```sql\n")[2].partition("```")[0].split(";"):
                    if statement.strip():
                        writer.execute(statement)
                writer.execute("ANALYZE wheelbeat_monitor")
            report.add("filling the table", time.perf_counter() - begun, "s")
        with as_default(connection):
            from django.contrib.auth.models import User
            from django.test import Client
            from django.test.utils import setup_test_environment

            setup_test_environment()
            browser = Client()
            admin = User.objects.create_superuser("ann", password="x")  # noqa: S106 - of a throw-away site
            browser.force_login(admin)
            with psycopg.connect(server.url, autocommit=True) as writer:
                writer.execute(HISTORY, {"monitors": monitors, "user": admin.pk})
            slow = pages(report, browser, given.only)
            if not given.only:
                bulk_changes(report, browser, server.url, monitors)
    if given.only or given.monitors:
        return 0
    report.write()
    print(f"  too slow, or reading too much: {', '.join(slow) or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
