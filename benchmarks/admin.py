"""Every page of the admin, and large bulk changes beside a beat: ``python benchmarks/admin.py [--full]``.

Uses a hundred thousand monitors; with ``--full`` a million, to which the targets apply. Django's test client requests
the pages, including rendering. The floor is the processor time of the web process and its database session, which is
the time on an idle machine. Also reports the most rows that any statement of the page touches (``EXPLAIN ANALYZE``): a
page whose cost does not grow with the table touches far fewer rows than it has.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from admin_table import fill, fill_history
from monitor_table import SETTINGS
from report import Report, at_most, cpu_s

from celery_wheelbeat.dispatch.reports.lateness import BOUNDS_S

if TYPE_CHECKING:
    from collections.abc import Callable

MONITORS_URL = "/admin/wheelbeat/monitor/"
PAGE_MAX_S = 0.3
BULK_MAX_S = 30
BULK_OF = 200_000
LATENESS_MAX_S = 1
BEHIND_MAX_S = 120
ROWS_MAX = 60_000
"""Maximum number of rows that one statement of a page may touch."""
REPEATS = 5
FAST = 200
"""Monitors that fire every second, to measure the beat's lateness."""
BULK_SHARE = 5
"""Every fifth monitor belongs to the bulk."""

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
    "the audit: frequent operation": "@audit/?operation=U",
    "the quarantine": "@quarantine/",
    "bulk pause: the page that asks": "POST ?queue=bulk",
}


class Cost(NamedTuple):
    """Cost of one page."""

    median_s: float
    cpu_s: float
    """Processor time of the web process and its database session: the time on an idle machine."""
    worst_s: float
    queries: int
    rows: int
    """Most rows that one statement touched."""
    statement: str
    """The statement that touched them."""


def cost_of(browser: Any, session: int, path: str) -> Cost:
    """Request a page several times, then explain its statements."""
    from django.db import connection
    from support.site.plans import statements_explained

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
    with statements_explained(connection) as statements:
        request()
    rows, statement = max(statements, default=(0, ""))
    return Cost(statistics.median(times), cpu, max(times), len(statements), rows, statement)


def pages(report: Report, browser: Any, only: str) -> list[str]:
    """Measure every page; return those that are too slow."""
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
        target = at_most(PAGE_MAX_S * 1000)
        report.add(what, cost.median_s * 1000, "ms", floor=cost.cpu_s * 1000, target=target, note=note)
        if cost.cpu_s > PAGE_MAX_S or cost.rows > ROWS_MAX:
            slow.append(what)
            print(f"    ↑ {cost.statement[:1500]}", flush=True)
    return slow


def bulk_action(browser: Any, action: str, query: str, **answer: str) -> tuple[float, int]:
    """Run all steps of a bulk action on everything that matches ``query``; return seconds and requests."""
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
    """Return the status document of the beat; empty until there is one."""
    row = connection.execute("SELECT status FROM wheelbeat_beat ORDER BY seen_at DESC LIMIT 1").fetchone()
    return json.loads(row[0]) if row else {}


def p99_s(before: dict[str, Any], after: dict[str, Any]) -> tuple[float, int]:
    """Return the 99th percentile of lateness between two status documents, and the number of runs."""
    counts = [new - old for old, new in zip(before["histogram"], after["histogram"], strict=True)]
    of = sum(counts)
    for bound_s, so_far in zip(BOUNDS_S, accumulate(counts), strict=False):
        if so_far >= 0.99 * of:
            return bound_s, of
    return float("inf"), of


class Scene(NamedTuple):
    """A site and a beat on the same table."""

    report: Report
    connection: psycopg.Connection[Any]
    beat_pid: int
    count: int
    """Monitors concerned by a bulk."""

    def change(self, what: str, work: Callable[[], tuple[float, int]]) -> None:
        """Measure one bulk change until the beat has read all of it."""
        from django.db import connection as site

        session = site.connection.info.backend_pid
        before, beat_cpu = beat_status(self.connection), cpu_s(self.beat_pid)
        cpu = time.process_time() + cpu_s(session)
        took_s, steps = work()
        cpu = time.process_time() + cpu_s(session) - cpu
        begun = time.perf_counter()
        while beat_status(self.connection)["source"]["changes"] < before["source"]["changes"] + self.count:
            if time.perf_counter() - begun > BEHIND_MAX_S:
                source = beat_status(self.connection)["source"]
                raise SystemExit(f"{what}: the beat has not read it after {BEHIND_MAX_S} s: {source}")
            time.sleep(0.05)
        behind_s, beat_cpu = time.perf_counter() - begun, cpu_s(self.beat_pid) - beat_cpu
        bound_s, runs = p99_s(before["lateness"], beat_status(self.connection)["lateness"])
        of = f"bulk {what} of {self.count:,} beside a beat"
        note = (
            f"{steps} requests; in force {behind_s:.1f} s after the last; CPU of site {cpu:.1f} s, of the beat"
            f" {beat_cpu:.1f} s"
        )
        self.report.add(of, took_s, "s", floor=cpu, target=at_most(BULK_MAX_S * self.count / BULK_OF), note=note)
        target = at_most(LATENESS_MAX_S)
        self.report.add(f"{of}: 99 % of its runs late by at most", bound_s, "s", target=target, note=f"{runs:,} runs")


def bulk_changes(report: Report, browser: Any, url: str, monitors: int) -> None:
    """Pause, resume, edit and delete a fifth of the monitors while a real beat runs on the table."""
    from services import PrivateRedis
    from support.processes import DjangoProject, redis_conf
    from support.site.settings import database_of

    with (
        tempfile.TemporaryDirectory() as folder,
        PrivateRedis() as broker,
        DjangoProject(Path(folder), redis_conf(broker.url), database=database_of(url)) as project,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        beat = project.beat()
        beat.wait_for(" jobs loaded", timeout_s=600)
        project.wait_for(
            lambda: beat_status(connection).get("lateness", {}).get("runs", 0) > 10 * FAST, "runs", timeout_s=60
        )
        for what, action, answer in (
            ("pause", "pause_monitors", {"confirmed": "Pause", "reason": "data centre move"}),
            ("resume", "resume_monitors", {"confirmed": "Resume"}),
            ("edit of the priority", "edit_monitors", {"confirmed": "Change", "priority": "7"}),
            ("delete", "delete_selected", {"confirmed": "Delete", "typed": str(monitors // BULK_SHARE)}),
        ):
            scene = Scene(report, connection, beat.pid, monitors // BULK_SHARE)
            scene.change(
                what, lambda action=action, answer=answer: bulk_action(browser, action, "?queue=bulk", **answer)
            )
        if beat.stop():
            raise SystemExit(f"the beat ended badly:\n{beat.output}")
        runs = beat_status(connection)["runs"]
        report.add("runs not accounted for", runs["difference"], "runs", target=at_most(0))


def main() -> int:
    """Fill the table, measure pages and bulk changes, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="a million monitors")
    parser.add_argument("--monitors", type=int, default=0)
    parser.add_argument("--only", default="", help="pages whose description contains this; nothing is written")
    parser.add_argument("--no-search-index", action="store_true", help="without the indexes of the how-to")
    given = parser.parse_args()
    monitors = given.monitors or (1_000_000 if given.full else 100_000)
    report = Report("admin", full=given.full, monitors=monitors)
    from services import PrivatePostgres
    from support.site.databases import as_default, set_up_django, site_database

    set_up_django()
    with PrivatePostgres(**{**SETTINGS, "autovacuum": "on"}) as server, site_database(server.url) as connection:
        with psycopg.connect(server.url, autocommit=True) as writer:
            begun = time.perf_counter()
            fill(writer, monitors, fast=FAST, search_index=not given.no_search_index)
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
                fill_history(writer, monitors, admin.pk, indexes=not given.no_search_index)
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
