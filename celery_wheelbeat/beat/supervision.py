"""Self-supervision of a beat: status reports, thread liveness, watchdog sweeps, HTTP probes.

Runs at the end of each tick, after the due runs are handed over. Never waits.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import uuid
from collections import Counter
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from celery_wheelbeat import __version__
from celery_wheelbeat.beat.route_sweep import RouteSweep
from celery_wheelbeat.engine.watchdog import FINDINGS
from celery_wheelbeat.observe.forecast import Surveyor
from celery_wheelbeat.observe.health import HealthView
from celery_wheelbeat.observe.otel import instruments
from celery_wheelbeat.observe.probes import ProbeAnswers, Probes
from celery_wheelbeat.observe.status import (
    ENTRIES_SHOWN,
    REFUSED_SHOWN,
    DestinationState,
    EntryState,
    Jobs,
    Observed,
    Skips,
    document,
)
from celery_wheelbeat.schedules.fire_times import last_fire
from celery_wheelbeat.schedules.zones import database_version
from celery_wheelbeat.sources.beat_schedule.entries import key_of as entry_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_wheelbeat.beat.beat import Beat
    from celery_wheelbeat.runtime.clock import Reading

logger = logging.getLogger("celery.beat")

REPORT_EVERY_S = 2.0
SWEEP_EVERY_S = 2.0
"""One shard per sweep: all 256 within nine minutes."""


class Supervision:
    """Supervises one beat."""

    def __init__(self, beat: Beat) -> None:
        self.beat_id = str(uuid.uuid4())
        self._beat = beat
        self._started_ms = beat.parts.clock.wall_ms()
        self._report_due_s = 0.0
        self._wedged: list[str] = []
        self._busy: list[str] = []
        self._sweep_due_s = beat.parts.clock.monotonic_s() + SWEEP_EVERY_S
        self._swept = 0
        self._findings: Counter[str] = Counter()
        self._last_fires: dict[str, tuple[int | None, int | None]] = {}
        self._route_sweep = RouteSweep(beat.parts.engine)
        self._surveyor = Surveyor(beat.parts.engine, beat.parts.clock.monotonic_s)
        self.sight = HealthView(beat.parts.clock.monotonic_s())
        """Snapshot for other threads: replaced in each tick, never mutated."""
        self._probes: Probes | None = None

    def start(self) -> None:
        """Open the HTTP port if one is configured, and export metrics."""
        instruments.show(lambda: self.sight.status)
        clock, settings = self._beat.parts.clock, self._beat.parts.settings
        if settings.http_port:
            answers = ProbeAnswers(lambda: self.sight, clock.monotonic_s, settings.live_timeout, settings.http_hosts)
            self._probes = Probes(settings.http_host, settings.http_port, answers)
            self._probes.start()

    def close(self, now_ms: int) -> None:
        """Send the last report and close the port."""
        self.report(now_ms)
        instruments.hide()
        if self._probes is not None:
            self._probes.close()

    def look(self, reading: Reading) -> None:
        """Do the supervision that is due; log once when a thread stops looping and once when it recovers."""
        now_s = self._beat.parts.clock.monotonic_s()
        wedged = self._beat.parts.liveness.wedged(now_s)
        if wedged != self._wedged:
            if wedged:
                logger.critical("beat: No turn of %s for %.0f s", ", ".join(wedged), self._timeout_s)
            else:
                logger.warning("beat: All threads turn again")
            self._wedged = wedged
        self._look_at_busy(now_s)
        self._beat.parts.lines.turn(self._beat.parts.engine.cursor)
        if now_s >= self._sweep_due_s and self._beat.state in ("loading", "running"):
            self._sweep_due_s = now_s + SWEEP_EVERY_S
            self._sweep(reading.now_ms)
        if self._beat.state == "running" and self._beat.parts.engine.caught_up(reading.now_ms):
            self._surveyor.turn(reading.now_ms)
        if now_s >= self._report_due_s:
            self._report_due_s = now_s + REPORT_EVERY_S
            self._route_sweep.look()
            if self._beat.parts.lane_report is not None:
                self._beat.parts.lane_report.look(now_s, loading=self._beat.state != "running")
            self.report(reading.now_ms)
        self.sight = self.sight._replace(turned_s=now_s, wedged=tuple(wedged))

    def _look_at_busy(self, now_s: float) -> None:
        """Log once when a task has been running inside beat for longer than the live timeout, and once when it ends."""
        busy = self._beat.parts.liveness.busy(now_s)
        if len(busy) > len(self._busy):
            logger.warning(
                "beat: A task has been running inside beat for %.0f s (task_always_eager); other runs wait for it",
                self._timeout_s,
            )
        elif len(busy) < len(self._busy):
            logger.warning("beat: The task that was running inside beat has ended")
        self._busy = busy

    def _sweep(self, now_ms: int) -> None:
        engine = self._beat.parts.engine
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

    def report(self, now_ms: int) -> None:
        """Publish the status to ``sight``; once the namespace is known, pass status and mark to the I/O thread."""
        beat = self._beat
        mark = beat.mark_document()
        status = document(self.observe(now_ms))
        self.sight = self.sight._replace(status=status)
        if beat.namespace is None:
            return
        row: dict[str, Any] = {
            "beat_id": self.beat_id,
            "namespace": beat.namespace,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": __version__,
            "started_ms": self._started_ms,
            "seen_ms": now_ms,
            "marks": json.dumps({} if mark is None else {beat.parts.dispatch.destination: mark.to_json()}),
            "status": json.dumps(status),
        }
        beat.parts.desk.report(row)

    def _jobs(self) -> Jobs:
        """Count the jobs and list up to ``REFUSED_SHOWN`` that are quarantined; there may be a million."""
        beat, parts = self._beat, self._beat.parts
        entries, quarantined = parts.entries.refused, parts.dispatch.quarantined
        refused = chain(
            ((entry_key(name), "", problem) for name, problem in entries.items()),
            ((key, problem.name, problem) for key, problem in beat.refused.items()),
            ((beat.key_of(job_id), self._name_of(job_id), reason) for job_id, reason in quarantined.items()),
        )
        shown = list(islice(refused, REFUSED_SHOWN))
        return Jobs(
            monitors=len(parts.engine) - len(parts.entries),
            entries=len(parts.entries),
            refused={key: str(reason) for key, _, reason in shown},
            refused_total=len(entries) + len(beat.refused) + len(quarantined),
            names={key: name for key, name, _ in shown if name},
        )

    def _name_of(self, job_id: int) -> str:
        (view,) = self._beat.parts.engine.lookup([job_id]) if job_id >= 0 else (None,)
        return "" if view is None else view.name

    def observe(self, now_ms: int) -> Observed:
        """Collect the values of the status document."""
        beat, parts = self._beat, self._beat.parts
        now_s = parts.clock.monotonic_s()
        dispatch = parts.dispatch
        self._surveyor.note_minute(now_ms, parts.ledger.sent, lambda: parts.lateness.quantiles(now_s))
        return Observed(
            state=beat.state,
            now_ms=now_ms,
            cursor_ms=parts.engine.cursor_ms or now_ms,
            jobs=self._jobs(),
            ledger=parts.ledger,
            pending=dispatch.pending,
            strays=dispatch.strays,
            failures=parts.dispatch.failures,
            lateness=parts.lateness.quantiles(now_s),
            histogram=parts.lateness.histogram(),
            destinations={
                parts.dispatch.destination: DestinationState(
                    health=parts.dispatch.health(),
                    waiting=dispatch.waiting,
                    oldest_fire_ms=dispatch.oldest_fire_ms(),
                    mark_ms=parts.mark.mark_ms,
                    last_error=parts.dispatch.last_error,
                )
            },
            source=parts.desk.status(),
            sweeps=self._swept,
            watchdog=self._findings,
            clock_steps=parts.engine.step_number,
            threads=parts.liveness.ages(now_s),
            wedged=self._wedged,
            lanes={} if parts.lane_report is None else parts.lane_report.as_json(),
            schedule=self._entries(),
            survey=self._surveyor.as_json(),
            tzdata=database_version(),
            skips=[
                Skips(skip.reason, skip.runs, skip.from_ms, skip.until_ms, self._keys(skip.job_ids))
                for skip in parts.ledger.last_skips
            ],
            shards=parts.settings.shards,
            cold_start=beat.loading.done,
        )

    def _entries(self) -> list[EntryState]:
        parts = self._beat.parts
        marks = parts.entries.marks()
        names = sorted(marks)[:ENTRIES_SHOWN]
        views = parts.engine.lookup([parts.entries.id_of(name) for name in names])
        states = []
        for name, view in zip(names, views, strict=True):
            entry = parts.view.data.get(name)
            if entry is not None:
                next_ms = None if view is None else view.next_fire_ms
                last_ms = self._last(name, next_ms, marks[name].effective_from_ms)
                states.append(EntryState(name, entry.task, _shown(entry.schedule), next_ms, last_ms))
        return states

    def _last(self, name: str, next_ms: int | None, since_ms: int) -> int | None:
        """Return the last fire time of an entry; cached until its next fire time changes."""
        known = self._last_fires.get(name)
        if known is not None and known[0] == next_ms:
            return known[1]
        parts = self._beat.parts
        schedule = parts.engine.schedule_of(parts.entries.id_of(name))
        found = None if schedule is None else last_fire(schedule, parts.engine.cursor_ms, since_ms)
        self._last_fires[name] = (next_ms, found)
        return found

    def _keys(self, job_ids: Iterable[int]) -> list[str]:
        known = {*self._beat.parts.entries.ids()}
        return [self._beat.key_of(job_id) for job_id in job_ids if job_id >= 0 or job_id in known]

    @property
    def _timeout_s(self) -> float:
        return self._beat.parts.settings.live_timeout


def _shown(schedule: Any) -> str:
    """Return a schedule as Celery shows it, or its class name: ``__str__`` of a custom class may raise."""
    try:
        return str(schedule)
    except Exception:
        return type(schedule).__name__
