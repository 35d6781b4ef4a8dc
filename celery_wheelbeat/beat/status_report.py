"""The values of a beat's status document, collected from its collaborators.

Reads only, in the scheduling thread. ``observe/status.py`` makes the document of them.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from celery_wheelbeat.observe.forecast import Surveyor
from celery_wheelbeat.observe.status import (
    ENTRIES_SHOWN,
    REFUSED_SHOWN,
    DestinationState,
    EntryState,
    Jobs,
    Observed,
    Skips,
)
from celery_wheelbeat.schedules.fire_times import last_fire
from celery_wheelbeat.schedules.zones import database_version
from celery_wheelbeat.sources.beat_schedule.entries import key_of as entry_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from celery_wheelbeat.beat.beat import Beat
    from celery_wheelbeat.dispatch.lane_report import LaneReport
    from celery_wheelbeat.dispatch.reports.lateness import Lateness
    from celery_wheelbeat.observe.liveness import Liveness
    from celery_wheelbeat.settings import Settings


class StatusReport:
    """Collects the values of one beat."""

    def __init__(
        self, beat: Beat, settings: Settings, *, liveness: Liveness, lateness: Lateness, lane_report: LaneReport | None
    ) -> None:
        """``lane_report``: None without a fast lane."""
        self.surveyor = Surveyor(beat.engine, beat.clock.monotonic_s)
        """The forecast of the load, and the last minutes."""
        self._beat = beat
        self._engine = beat.engine
        self._settings = settings
        self._liveness = liveness
        self._lateness = lateness
        self._lane_report = lane_report
        self._last_fires: dict[str, tuple[int | None, int | None]] = {}
        """Entry → (its next fire time, its last one)."""

    def observe(self, now_ms: int, *, sweeps: int, findings: Mapping[str, int], wedged: list[str]) -> Observed:
        """Collect the values. ``sweeps`` and ``findings`` are of the watchdog, ``wedged`` are threads."""
        beat, engine, dispatcher, lateness = self._beat, self._engine, self._beat.dispatcher, self._lateness
        now_s = beat.clock.monotonic_s()
        self.surveyor.note_minute(now_ms, engine.ledger.sent, lambda: lateness.quantiles(now_s))
        return Observed(
            state=beat.state,
            now_ms=now_ms,
            cursor_ms=engine.cursor_ms or now_ms,
            jobs=self._jobs(),
            ledger=engine.ledger,
            pending=dispatcher.pending,
            kept=len(engine.share.followed),
            strays=dispatcher.strays,
            failures=dispatcher.failures,
            lateness=lateness.quantiles(now_s),
            histogram=lateness.histogram(),
            destinations={
                dispatcher.destination: DestinationState(
                    health=dispatcher.health(),
                    waiting=dispatcher.waiting,
                    oldest_fire_ms=dispatcher.oldest_fire_ms(),
                    mark_ms=beat.mark.mark_ms,
                    last_error=dispatcher.last_error,
                )
            },
            source=beat.sources.status(),
            sweeps=sweeps,
            watchdog=findings,
            clock_steps=engine.relived.step,
            threads=self._liveness.ages(now_s),
            wedged=wedged,
            lanes={} if self._lane_report is None else self._lane_report.as_json(),
            schedule=self._entries(),
            survey=self.surveyor.as_json(),
            tzdata=database_version(),
            skips=[
                Skips(skip.reason, skip.runs, skip.from_ms, skip.until_ms, self._keys(skip.job_ids))
                for skip in engine.ledger.last_skips
            ],
            shards=self._settings.shards,
            cold_start=beat.startup.loading.done,
            later=beat.later.as_json(now_ms),
            member=None if beat.member is None else beat.member.as_json(),
        )

    def _jobs(self) -> Jobs:
        """Count the jobs and list up to ``REFUSED_SHOWN`` that are quarantined; there may be a million."""
        beat, compiled = self._beat, self._beat.entries.in_force
        entries, quarantined = compiled.refused, beat.dispatcher.quarantined
        refused = chain(
            ((entry_key(name), "", problem) for name, problem in entries.items()),
            ((key, problem.name, problem) for key, problem in beat.quarantine.monitors.items()),
            ((beat.entries.key_of(job_id), self._name_of(job_id), reason) for job_id, reason in quarantined.items()),
        )
        shown = list(islice(refused, REFUSED_SHOWN))
        return Jobs(
            monitors=len(self._engine) - len(compiled) - len(self._beat.later),
            entries=len(compiled),
            refused={key: str(reason) for key, _, reason in shown},
            refused_total=len(entries) + len(beat.quarantine.monitors) + len(quarantined),
            names={key: name for key, name, _ in shown if name},
        )

    def _name_of(self, job_id: int) -> str:
        (view,) = self._engine.lookup([job_id]) if job_id >= 0 else (None,)
        return "" if view is None else view.name

    def _entries(self) -> list[EntryState]:
        compiled = self._beat.entries.in_force
        marks = compiled.marks()
        names = sorted(marks)[:ENTRIES_SHOWN]
        views = self._engine.lookup([compiled.id_of(name) for name in names])
        states = []
        for name, view in zip(names, views, strict=True):
            entry = self._beat.entries.view.data.get(name)
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
        schedule = self._engine.schedule_of(self._beat.entries.in_force.id_of(name))
        found = None if schedule is None else last_fire(schedule, self._engine.cursor_ms, since_ms)
        self._last_fires[name] = (next_ms, found)
        return found

    def _keys(self, job_ids: Iterable[int]) -> list[str]:
        known = {*self._beat.entries.in_force.ids()}
        return [self._beat.entries.key_of(job_id) for job_id in job_ids if job_id >= 0 or job_id in known]


def _shown(schedule: Any) -> str:
    """Return a schedule as Celery shows it, or its class name: ``__str__`` of a custom class may raise."""
    try:
        return str(schedule)
    except Exception:
        return type(schedule).__name__
