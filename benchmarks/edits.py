"""A million edits in one transaction, and the lateness that they cause: ``python benchmarks/edits.py [--full]``.

First measures change-log reader and wheel alone, as in a beat: two threads, real time, ticks of 100 ms, PostgreSQL on
the same machine; lateness is measured when the engine hands out a run. Then the same edits with a real ``celery beat``,
whose messages are taken off a Redis queue; there lateness is measured at the queue.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import psycopg
from beats import Counting, environment, running_beat, weighted
from coldstart import LoadingBeat
from monitor_table import postgres_table
from report import Report, at_most, quantile
from services import PrivateRedis

from celery_wheelbeat.beat.loading import settle
from celery_wheelbeat.engine import EngineConfig
from celery_wheelbeat.engine.engine import Engine
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.sources.changelog.reader import MESSAGES_MAX, POLL_S, TAKE_MAX
from celery_wheelbeat.sources.messages import Changed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_wheelbeat.sources.messages import SourceMessage

TICK_MS = 100
PATIENCE_S = 900.0
BEFORE_S = 30.0
"""Seconds that the real beat runs before the edits, so that every message has been rendered once."""


class Reading(threading.Thread):
    """Follows the change log as the I/O thread of a beat does, into a bounded list."""

    def __init__(self, beat: LoadingBeat) -> None:
        super().__init__(daemon=True)
        self.beat = beat
        self.news: list[SourceMessage] = []
        self.room = threading.Condition()
        self.ended = False

    def run(self) -> None:
        while not self.ended:
            news, more = self.beat.follower.step(time.monotonic())
            with self.room:
                self.room.wait_for(lambda: len(self.news) < MESSAGES_MAX or self.ended)
                self.news += news
            if not more:
                time.sleep(POLL_S)

    def take(self) -> list[SourceMessage]:
        """Return pending changes, at most as many as one turn of a beat takes."""
        with self.room:
            taken, self.news = self.news[:TAKE_MAX], self.news[TAKE_MAX:]
            self.room.notify()
        return taken


class Writing(threading.Thread):
    """One transaction that edits many monitors while the beat runs."""

    def __init__(self, connection: psycopg.Connection[Any], count: int) -> None:
        super().__init__(daemon=True)
        self.connection = connection
        self.count = count
        self.took_s = 0.0

    def run(self) -> None:
        begun = time.monotonic()
        self.connection.execute(
            "UPDATE wheelbeat_monitor SET interval_ms = interval_ms + 60000 WHERE id <= %s", (self.count,)
        )
        self.took_s = time.monotonic() - begun


class Turned(NamedTuple):
    """Result of one turn."""

    applied: int
    tick_s: float | None
    """Lateness of its oldest tick; None if there was none."""
    late: list[tuple[float, int]]
    """(Lateness, number) of the runs handed out."""


def turn(beat: LoadingBeat, reading: Reading) -> Turned:
    """Run one turn of a beat."""
    applied = 0
    for news in reading.take():
        if isinstance(news, Changed):
            beat.engine.apply(news.changes)
            applied += len(news.changes.upserts)
    oldest_ms = beat.engine.cursor_ms + TICK_MS
    now_ms = time.time() * 1000
    if now_ms < oldest_ms:
        return Turned(applied, None, [])
    late = []
    due = beat.engine.advance(round(now_ms))
    now_s = time.time()
    for batch in due:
        fires, counts = np.unique(batch.fire_ms, return_counts=True)
        late += [
            (now_s - fire_ms / 1000, count) for fire_ms, count in zip(fires.tolist(), counts.tolist(), strict=True)
        ]
    return Turned(applied, now_s - oldest_ms / 1000, late)


class Followed(NamedTuple):
    """Measurements while the edits were applied."""

    took_s: float
    ticks_s: list[float]
    late: list[tuple[float, int]]


def follow(beat: LoadingBeat, reading: Reading, edits: int) -> Followed:
    """Run turns until all ``edits`` are applied."""
    applied, begun = 0, time.monotonic()
    ticks_s: list[float] = []
    late: list[tuple[float, int]] = []
    while applied < edits and time.monotonic() - begun < PATIENCE_S:
        turned = turn(beat, reading)
        applied += turned.applied
        late += turned.late
        if turned.tick_s is not None:
            ticks_s.append(turned.tick_s)
        if not turned.applied:
            time.sleep(0.005)
    if applied < edits:
        raise SystemExit(f"only {applied:,} of {edits:,} edits arrived within {PATIENCE_S:.0f} s")
    return Followed(time.monotonic() - begun, sorted(ticks_s), sorted(late))


def add_wheel(report: Report, url: str, writer: psycopg.Connection[Any], monitors: int, edits: int) -> None:
    """Measure change-log reader and wheel alone."""
    beat = LoadingBeat(url)
    beat.engine = Engine(EngineConfig(tick_ms=TICK_MS), beat.engine.crons, Ledger())
    beat.engine.start(round(time.time() * 1000))
    while not beat.follower.loaded:
        beat.step()
    beat.engine.advance(round(time.time() * 1000))
    settle()
    reading = Reading(beat)
    reading.start()
    for count in (1, edits):
        writing = Writing(writer, count)
        writing.start()
        found = follow(beat, reading, count)
        took_s = found.took_s - writing.took_s
        what = f"{count:,} edit{'s' if count > 1 else ''} in one transaction, {monitors:,} monitors"
        why = "the triggers write a row of the change log for each edit, and the indexes of the table"
        report.add(f"{what}: the UPDATE itself", writing.took_s, "s", note="triggers included", limit=why)
        why = "the poll, each half second" if count == 1 else "reading the edited rows as columns"
        each = f"{count / took_s:,.0f}/s"
        report.add(f"{what}: from its commit until all are in force", took_s, "s", note=each, limit=why)
    why = "of one batch of edits the wheel holds up what is due for as long as it needs to apply it"
    runs = sum(count for _, count in found.late)
    for name, share in (("median", 0.5), ("p99", 0.99), ("latest", 1.0)):
        target = at_most(1) if share == 0.99 else None
        what = f"{edits:,} edits: lateness of runs meanwhile, wheel alone, {name}"
        report.add(what, weighted(found.late, share), "s", target=target, note=f"{runs:,} runs", limit=why)
    ticks = f"{len(found.ticks_s)} ticks of {TICK_MS} ms"
    report.add(f"{edits:,} edits: lateness of ticks meanwhile, p99", quantile(found.ticks_s, 0.99), "s", note=ticks)
    report.plot_distribution("lateness of ticks during the edits, wheel alone, in s", found.ticks_s)
    reading.ended = True
    reading.take()
    reading.join(10)
    beat.follower.close()


@contextmanager
def real_beat(url: str, broker: PrivateRedis) -> Iterator[Counting]:
    """Run ``celery beat`` on the table and consume its messages."""
    case = {"scheduler": "wheelbeat", "redis": broker.url, "port": urlsplit(url).port, "database": "postgres"}
    with tempfile.TemporaryDirectory() as folder:
        env = environment(Path(folder), case)
        with running_beat(Path(folder), env, "wheelbeat"):
            counting = Counting(broker.url)
            counting.start()
            yield counting
            counting.ended = True
            counting.join(10)


def status(writer: psycopg.Connection[Any]) -> dict[str, Any]:
    """Return the latest status document of the beat."""
    rows = writer.execute("SELECT status FROM wheelbeat_beat ORDER BY seen_at DESC LIMIT 1").fetchall()
    return json.loads(rows[0][0]) if rows else {}


def wait_for_status(writer: psycopg.Connection[Any], wanted: Any, what: str) -> dict[str, Any]:
    """Wait until the status satisfies ``wanted``; return it."""
    begun = time.monotonic()
    while not wanted(found := status(writer)):
        if time.monotonic() - begun > PATIENCE_S:
            raise SystemExit(f"{what}: not within {PATIENCE_S:.0f} s; {found}")
        time.sleep(0.2)
    return found


def add_beat(report: Report, url: str, writer: psycopg.Connection[Any], edits: int) -> None:
    """Measure the lateness of a real beat at the queue during the same edits."""
    with PrivateRedis() as broker, real_beat(url, broker) as counting:
        before = wait_for_status(writer, lambda found: found.get("state") == "running", "the load")
        changes = before["source"]["changes"]
        time.sleep(BEFORE_S)
        at, writing = len(counting.seen), Writing(writer, edits)
        writing.start()
        wait_for_status(
            writer,
            lambda found: found["source"]["changes"] >= changes + edits and not found["source"]["behind"],
            "the edits",
        )
        late = counting.late_since(at)
        after = status(writer)
    runs = sum(count for _, count in late)
    note = f"{runs:,} runs sent meanwhile; difference in the account {after['runs']['difference']}"
    limit = "the wheel applies edits between ticks, and edited monitors need new messages"
    for name, share in (("median", 0.5), ("p99", 0.99), ("latest", 1.0)):
        target = at_most(1) if share == 0.99 else None
        what = f"{edits:,} edits: lateness in the queue meanwhile, celery beat, {name}"
        report.add(what, weighted(late, share), "s", target=target, note=note, limit=limit)
    points = [(100 * share, weighted(late, share)) for share in [n / 100 for n in range(100)] + [0.995, 0.999, 1.0]]
    report.plot("lateness in the queue during the edits, celery beat, in s, by percent of runs below", points)


def main() -> None:
    """Load, edit, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--monitors", type=int, help="rows; 300,000, with --full 5 million")
    parser.add_argument("--edits", type=int, help="100,000, with --full a million; given, no results are written")
    given = parser.parse_args()
    monitors = given.monitors or (5_000_000 if given.full else 300_000)
    edits = given.edits or (1_000_000 if given.full else 100_000)
    report = Report("edits", full=given.full, monitors=monitors, tick_ms=TICK_MS)
    with postgres_table(monitors) as url, psycopg.connect(url, autocommit=True) as writer:
        add_wheel(report, url, writer, monitors, edits)
        add_beat(report, url, writer, edits)
    if not (given.monitors or given.edits):
        report.write()


if __name__ == "__main__":
    sys.exit(main())
