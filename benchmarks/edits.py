"""A million edits in one transaction, and what they do to the ticks: ``python benchmarks/edits.py [--full]``.

The change-log tail and the wheel as in a beat: two threads, real time, PostgreSQL on the same machine. Lateness is how
long after its second a tick is emptied.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from coldstart import LoadingBeat
from monitor_table import postgres_table
from report import Report

from celery_wheelbeat.observe.memory import settle
from celery_wheelbeat.sources.news import Changed
from celery_wheelbeat.sources.tail import NEWS_MAX, POLL_S, TAKE_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_wheelbeat.sources.news import News


class Reading(threading.Thread):
    """Follows the change log as the I/O thread of a beat does, into a bounded list."""

    def __init__(self, beat: LoadingBeat) -> None:
        super().__init__(daemon=True)
        self.beat = beat
        self.news: list[News] = []
        self.room = threading.Condition()
        self.ended = False

    def run(self) -> None:
        while not self.ended:
            news, more = self.beat.follower.step(time.monotonic())
            with self.room:
                self.room.wait_for(lambda: len(self.news) < NEWS_MAX or self.ended)
                self.news += news
            if not more:
                time.sleep(POLL_S)

    def take(self) -> list[News]:
        """Return what is there, as much as one turn of a beat takes."""
        with self.room:
            taken, self.news = self.news[:TAKE_MAX], self.news[TAKE_MAX:]
            self.room.notify()
        return taken


class Writing(threading.Thread):
    """One transaction that edits many monitors, while the beat turns."""

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


def turn(beat: LoadingBeat, reading: Reading) -> tuple[int, float]:
    """Do one turn of a beat; returns the edits applied and the lateness of its oldest tick, in seconds."""
    applied = 0
    for news in reading.take():
        if isinstance(news, Changed):
            beat.engine.apply(news.changes)
            applied += len(news.changes.upserts)
    oldest_ms = beat.engine.cursor_ms + 1_000
    now_ms = time.time() * 1000
    late_s = 0.0
    if now_ms >= oldest_ms:
        beat.engine.advance(round(now_ms))
        late_s = time.time() - oldest_ms / 1000
    return applied, late_s


def follow(beat: LoadingBeat, reading: Reading, edits: int, most_s: float) -> tuple[float, list[float]]:
    """Turn until ``edits`` are in force; returns how long it took, and the lateness of every tick."""
    applied, lateness, begun = 0, [], time.monotonic()
    while applied < edits and time.monotonic() - begun < most_s:
        more, late_s = turn(beat, reading)
        applied += more
        if late_s:
            lateness.append(late_s)
        if not more:
            time.sleep(0.005)
    if applied < edits:
        raise SystemExit(f"only {applied:,} of {edits:,} edits arrived within {most_s:.0f} s")
    return time.monotonic() - begun, lateness


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main() -> None:
    """Load, edit, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    given = parser.parse_args()
    monitors, edits = (5_000_000, 1_000_000) if given.full else (300_000, 100_000)
    report = Report("edits", full=given.full, monitors=monitors)
    with postgres_table(monitors) as url, psycopg.connect(url, autocommit=True) as writer:
        beat = LoadingBeat(url)
        while not beat.follower.loaded:
            beat.step()
        settle()
        reading = Reading(beat)
        reading.start()
        follow(beat, reading, 0, 60)
        for count in (1, edits):
            writing = Writing(writer, count)
            follow(beat, reading, 0, 60)
            writing.start()
            took_s, lateness = follow(beat, reading, count, 900)
            took_s -= writing.took_s
            what = f"{count:,} edit{'s' if count > 1 else ''} in one transaction, {monitors:,} monitors"
            report.add(f"{what}: the UPDATE itself, triggers included", writing.took_s, "s")
            report.add(f"{what}: from its commit until all are in force", took_s, "s", note=f"{count / took_s:,.0f}/s")
            if count > 1:
                report.add(f"{what}: lateness of ticks meanwhile, median", quantile(lateness, 0.5), "s")
                report.add(f"{what}: lateness of ticks meanwhile, p99", quantile(lateness, 0.99), "s")
                report.add(f"{what}: lateness of ticks meanwhile, longest", max(lateness), "s")
        reading.ended = True
        reading.take()
        reading.join(10)
        beat.follower.close()
    report.write()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
