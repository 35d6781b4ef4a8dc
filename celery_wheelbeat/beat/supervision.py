"""Self-supervision of a beat: status reports, thread liveness, watchdog sweeps, HTTP probes.

Runs at the end of each tick, after the due runs are handed over. Never waits.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from celery_wheelbeat import __version__
from celery_wheelbeat.engine.packing import DEAD
from celery_wheelbeat.engine.watchdog import FINDINGS
from celery_wheelbeat.observe.gap_log import OutageLog
from celery_wheelbeat.observe.health import HealthView
from celery_wheelbeat.observe.otel import instruments
from celery_wheelbeat.observe.probes import ProbeAnswers, Probes
from celery_wheelbeat.observe.status import document
from celery_wheelbeat.runtime.clock import Motion
from celery_wheelbeat.sources.messages import Receipt

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from celery_wheelbeat.beat.beat import Beat
    from celery_wheelbeat.beat.status_report import StatusReport
    from celery_wheelbeat.dispatch.lane_report import LaneReport
    from celery_wheelbeat.dispatch.reports.send_log import SendLog
    from celery_wheelbeat.engine.engine import Engine
    from celery_wheelbeat.observe.liveness import Liveness
    from celery_wheelbeat.observe.status import Observed
    from celery_wheelbeat.runtime.clock import Reading
    from celery_wheelbeat.settings import Settings

logger = logging.getLogger("celery.beat")

REPORT_EVERY_S = 2.0
SWEEP_EVERY_S = 2.0
"""One shard per sweep: all 256 within nine minutes."""


ROWS_PER_SCAN = 500_000


class Supervision:
    """Supervises one beat."""

    def __init__(
        self,
        beat: Beat,
        settings: Settings,
        *,
        liveness: Liveness,
        status: StatusReport,
        send_log: SendLog,
        lane_report: LaneReport | None,
        beat_id: str,
    ) -> None:
        """``lane_report``: None without a fast lane. ``beat_id``: identity of the process, in rows and on rolls."""
        self.beat_id = beat_id
        self.send_log = send_log
        self.lane_report = lane_report
        self._beat = beat
        self._engine = beat.engine
        self._settings = settings
        self._liveness = liveness
        self._status = status
        self._started_ms = beat.clock.wall_ms()
        self._report_due_s = 0.0
        self._wedged: list[str] = []
        self._busy: list[str] = []
        self._sweep_due_s = beat.clock.monotonic_s() + SWEEP_EVERY_S
        self._swept = 0
        self._findings: Counter[str] = Counter()
        self._outage_log = OutageLog(beat.engine.ledger)
        self._route_sweep = RouteSweep(beat.engine)
        self.health_view = HealthView(beat.clock.monotonic_s())
        """Snapshot for other threads: replaced in each tick, never mutated."""
        self._probes: Probes | None = None

    def start(self) -> None:
        """Limit the log lines per run, open the HTTP port if one is configured, and export metrics."""
        instruments.show(lambda: self.health_view.status)
        self.send_log.install()
        clock, settings = self._beat.clock, self._settings
        if settings.http_port:
            answers = ProbeAnswers(
                lambda: self.health_view, clock.monotonic_s, settings.live_timeout, settings.http_hosts
            )
            self._probes = Probes(settings.http_host, settings.http_port, answers)
            self._probes.start()

    def close(self, now_ms: int) -> None:
        """Send the last report and close the port. Call after the publisher has stopped."""
        self.report(now_ms)
        instruments.hide()
        if self._probes is not None:
            self._probes.close()
        self.send_log.remove()

    def update(self, reading: Reading) -> None:
        """Do the supervision that is due; log once when a thread stops looping and once when it recovers."""
        now_s = self._beat.clock.monotonic_s()
        wedged = self._liveness.wedged(now_s)
        if wedged != self._wedged:
            if wedged:
                logger.critical("beat: Hung threads: %s; no progress for %.0f s", ", ".join(wedged), self._timeout_s)
            else:
                logger.warning("beat: All threads make progress again")
            self._wedged = wedged
        self._note_busy(now_s)
        self._outage_log.update(now_s, self._outage())
        self.send_log.turn(self._engine.cursor)
        if now_s >= self._sweep_due_s and self._beat.state in ("loading", "running"):
            self._sweep_due_s = now_s + SWEEP_EVERY_S
            self._sweep(reading.now_ms)
        if self._beat.state == "running" and self._engine.caught_up(reading.now_ms):
            self._status.surveyor.turn(reading.now_ms)
        stepped_back = reading.motion is Motion.BACK
        first_mark_due = self._beat.startup.first_mark.is_due and not self._beat.entries.is_first
        if stepped_back or first_mark_due or now_s >= self._report_due_s:
            self._report_due_s = now_s + REPORT_EVERY_S
            self._route_sweep.scan()
            if self.lane_report is not None:
                self.lane_report.update(now_s, loading=self._beat.state != "running")
            self.report(reading.now_ms, urgent=stepped_back)
        self.health_view = self.health_view._replace(turned_s=now_s, wedged=tuple(wedged))

    def _outage(self) -> str:
        """Return why no run can be sent; empty if runs are sent."""
        if self._beat.startup.namespace is None:
            return "run ids waited for the database"
        return "" if self._beat.dispatcher.health().connected else "the broker was down"

    def _note_busy(self, now_s: float) -> None:
        """Log once when a task has been running inside beat for longer than the live timeout, and once when it ends."""
        busy = self._liveness.busy(now_s)
        if len(busy) > len(self._busy):
            logger.warning(
                "beat: A task has been running inside beat for %.0f s (task_always_eager); other runs wait for it",
                self._timeout_s,
            )
        elif len(busy) < len(self._busy):
            logger.warning("beat: The task that was running inside beat has ended")
        self._busy = busy

    def _sweep(self, now_ms: int) -> None:
        engine = self._engine
        if not engine.caught_up(now_ms):
            return
        report = self._beat.sweep(self._swept % len(engine.shards))
        self._swept += 1
        self._findings += report.counts
        if not report.healthy:
            logger.error(
                "beat: The watchdog found and healed in shard %d: %s",
                report.shard,
                ", ".join(
                    f"{finding} {count} ({FINDINGS[finding]}; jobs {report.examples.get(finding, [])})"
                    for finding, count in report.counts.items()
                ),
            )

    @property
    def wedged(self) -> bool:
        """Whether a thread has not completed a loop within the live timeout."""
        return bool(self._wedged)

    def report(self, now_ms: int, *, urgent: bool = False) -> None:
        """Publish the status to ``health_view``, and once the namespace is known, status and mark to the I/O thread.

        ``urgent``: the row is to be stored at once. After a backward step of the clock, the stored mark lies ahead: a
        process that started now would ignore it and treat its start as the first one.
        """
        beat = self._beat
        mark = beat.mark_document()
        status = document(self.observe(now_ms))
        self.health_view = self.health_view._replace(status=status)
        if beat.startup.namespace is None:
            return
        row: dict[str, Any] = {
            "beat_id": self.beat_id,
            "namespace": beat.startup.namespace,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": __version__,
            "started_ms": self._started_ms,
            "seen_ms": now_ms,
            "marks": json.dumps({} if mark is None else {beat.dispatcher.destination: mark.to_json()}),
            "status": json.dumps(status),
        }
        receipt = None if beat.entries.is_first else beat.startup.first_mark.ask()  # a mark includes the entries
        beat.sources.report(row, Receipt() if receipt is None and urgent else receipt)

    def observe(self, now_ms: int) -> Observed:
        """Return the values of the status document."""
        return self._status.observe(now_ms, sweeps=self._swept, findings=self._findings, wedged=self._wedged)

    @property
    def _timeout_s(self) -> float:
        return self._settings.live_timeout


class RouteSweep:
    """Scans the jobs a few shards at a time and frees the routes that no job uses.

    Invariant: a route is freed only after every job, enabled or not, was scanned and no job that arrived meanwhile uses
    it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next = 0
        """Number of the shard to scan next."""
        self._used: NDArray[np.bool_] = np.zeros(0, np.bool_)
        """Routes found in use in this round, by route index."""

    def scan(self) -> None:
        """Scan about ``ROWS_PER_SCAN`` more jobs; at the end of a round, free the unused routes."""
        shards, routes, seen = self._engine.shards, self._engine.routes, 0
        if not self._next:
            routes.begin_round()
            self._used = np.zeros(len(routes), np.bool_)
        while seen < ROWS_PER_SCAN and self._next < len(shards):
            rows = shards[self._next].table.rows
            found = rows.route[rows.flags & DEAD == 0]
            self._used[found[found < len(self._used)]] = True  # routes with a higher index were added during this round
            seen += len(rows.ids)
            self._next += 1
        if self._next == len(shards):
            self._next = 0
            routes.collect(self._used)
