"""Compiles rows of ``wheelbeat_monitor`` into a ``DefinitionBatch``, one by one.

Pure: the same rows give the same columns and offsets on every machine and in every version. A bad row is refused with
its field and reason, even if it makes this package's own code raise. It must never stop its neighbours.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from celery_wheelbeat.errors import InvalidMonitor, InvalidSchedule
from celery_wheelbeat.jobs import identity as runs
from celery_wheelbeat.jobs.definitions import DefinitionBatch, Misfire, Route, flags_of
from celery_wheelbeat.jobs.rows import Limits, MonitorRow, definition_hash, key_of
from celery_wheelbeat.jobs.validation import MISFIRES, OVERLAPS, check, cron_of, sending_of, unforeseen
from celery_wheelbeat.schedules.durations import format_duration, parse_duration
from celery_wheelbeat.schedules.intervals import Bounded, Interval, Once
from celery_wheelbeat.schedules.kinds import ALWAYS_MS, NEVER_MS, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from celery_wheelbeat.jobs.json_fields import Decoder
    from celery_wheelbeat.schedules.cron import Cron, CronTable
    from celery_wheelbeat.schedules.kinds import Polled

    SolarFactory = Callable[[str, float, float], Polled]
    """Event, latitude and longitude → schedule; raises ``InvalidSchedule`` if it cannot be computed."""

__all__ = [
    "Compiled",
    "Limits",
    "MonitorRow",
    "check",
    "compile_rows",
    "definition_hash",
    "format_duration",
    "key_of",
    "parse_duration",
    "schedule_of",
    "window_s",
]

REPLACEABLE_ENTRY: Final = "celery.backend_cleanup"
"""The only entry of ``beat_schedule`` that a monitor of the same name replaces."""


class Compiled(NamedTuple):
    """The result of ``compile_rows``: definitions that can run, and refused rows with their reasons."""

    batch: DefinitionBatch
    refused: dict[int, InvalidMonitor]
    hashes: dict[int, str]
    """Definition hash of every refused row; the quarantine ends when it changes."""


class _Job(NamedTuple):
    """One row of the batch, before the rows become columns."""

    id: int
    kind: int
    interval_ms: int
    anchor_ms: int
    window_s: int
    cron_index: int
    flags: int
    route_index: int
    start_ms: int
    end_ms: int
    incident_interval_ms: int
    incident_until_ms: int
    effective_from_ms: int
    payload: bytes
    name: bytes


def compile_rows(
    rows: Sequence[MonitorRow],
    *,
    crons: CronTable,
    cron_jitter_s: int = 30,
    limits: Limits | None = None,
    solar: SolarFactory | None = None,
    entry_names: Collection[str] = (),
) -> Compiled:
    """Compile ``rows`` into one batch, ascending by id; the last of several rows with the same id wins.

    Disabled and finished rows are compiled without the flag ``ENABLED``. ``solar`` builds the schedules of solar rows;
    without it they are refused. A row with one of ``entry_names`` is refused, except ``REPLACEABLE_ENTRY``.
    """
    limits = limits or Limits()
    compiler = _Compiler(crons, cron_jitter_s, solar, limits.decode)
    jobs: list[_Job] = []
    refused: dict[int, InvalidMonitor] = {}
    hashes: dict[int, str] = {}
    for row_id, row in sorted({row.id: row for row in rows}.items()):
        problems = check(row, limits=limits)
        if row.name in entry_names and row.name != REPLACEABLE_ENTRY:
            problems.append(InvalidMonitor("name", "same name as a beat_schedule entry"))
        if not problems:
            try:
                jobs.append(compiler.compile(row))
                continue
            except InvalidSchedule as error:
                problems.append(InvalidMonitor("solar_event", str(error)))
            except Exception as error:
                problems.append(unforeseen(row, error))
        refused[row_id] = _one_of(problems, row)
        hashes[row_id] = definition_hash(row)
    return Compiled(_columns(jobs, compiler), refused, hashes)


def schedule_of(row: MonitorRow, *, cron_jitter_s: int = 30) -> Bounded | None:
    """Return the schedule that the engine runs for ``row``, which has no problems; None for solar rows."""
    base: Interval | Cron | Once
    if row.interval_ms is not None:
        base = Interval(timedelta(milliseconds=row.interval_ms), anchor_ms=row.start_at_ms or 0)
    elif row.cron:
        base = _checked_cron(row)
    elif row.once_at_ms is not None:
        base = Once(row.once_at_ms)
    else:
        return None
    return Bounded(
        base,
        offset_ms=runs.cron_offset_ms(row.id, window_s(row, cron_jitter_s)),
        start_ms=ALWAYS_MS if row.start_at_ms is None else row.start_at_ms,
        end_ms=NEVER_MS if row.end_at_ms is None else row.end_at_ms,
        incident_interval_ms=row.incident_interval_ms or 0,
        incident_until_ms=row.incident_until_ms or 0,
    )


def window_s(row: MonitorRow, cron_jitter_s: int) -> int:
    """Return the width in seconds of the jitter window; 0 = exactly on the grid."""
    if row.jitter_s is not None:
        return row.jitter_s
    if row.interval_ms is not None:
        return 0 if row.start_at_ms is not None else row.interval_ms // 1000  # a start fixes the phase
    return cron_jitter_s if row.cron else 0


def _checked_cron(row: MonitorRow) -> Cron:
    cron = cron_of(row.cron or "", row.timezone, row.day_rule)
    if isinstance(cron, InvalidMonitor):
        raise InvalidSchedule(str(cron))
    return cron


def _one_of(problems: Sequence[InvalidMonitor], row: MonitorRow) -> InvalidMonitor:
    first, *others = problems
    return InvalidMonitor(first.field, "; ".join([first.reason, *map(str, others)]), name=str(row.name))


class _Compiler:
    """Compiles validated rows; collects their polled schedules and routes."""

    def __init__(self, crons: CronTable, cron_jitter_s: int, solar: SolarFactory | None, decode: Decoder) -> None:
        self.polled: dict[int, Polled] = {}
        self.routes: dict[Route, int] = {}
        """Route → index."""
        self._crons = crons
        self._cron_jitter_s = cron_jitter_s
        self._solar = solar
        self._decode = decode

    def compile(self, row: MonitorRow) -> _Job:
        """Compile a row without problems; raises ``InvalidSchedule`` if its solar schedule cannot be built."""
        kind, anchor_ms, cron_index = self._schedule(row)
        misfire = MISFIRES[row.misfire]
        if kind == Kind.ONCE and misfire is Misfire.AUTO:
            misfire = Misfire.LATEST  # late rather than never
        route = Route(row.task, sending_of(row, self._decode).text, bool(row.expires_next))
        return _Job(
            id=row.id,
            kind=kind,
            interval_ms=row.interval_ms or 0,
            anchor_ms=anchor_ms,
            window_s=window_s(row, self._cron_jitter_s),
            cron_index=cron_index,
            flags=flags_of(
                enabled=bool(row.enabled) and row.finished_at_ms is None,
                one_off=bool(row.one_off) or kind == Kind.ONCE,
                misfire=misfire,
                overlap=OVERLAPS[row.overlap],
            ),
            route_index=self.routes.setdefault(route, len(self.routes)),
            start_ms=ALWAYS_MS if row.start_at_ms is None else row.start_at_ms,
            end_ms=NEVER_MS if row.end_at_ms is None else row.end_at_ms,
            incident_interval_ms=row.incident_interval_ms or 0,
            incident_until_ms=row.incident_until_ms or 0,
            effective_from_ms=row.effective_from_ms,
            payload=_payload(row),
            name=row.name.encode(),
        )

    def _schedule(self, row: MonitorRow) -> tuple[int, int, int]:
        """Return kind, anchor in ms and index of the cron."""
        if row.interval_ms is not None:
            return Kind.INTERVAL, row.start_at_ms or 0, -1
        if row.cron:
            return Kind.CRON, 0, self._crons.intern(_checked_cron(row))
        if row.once_at_ms is not None:
            return Kind.ONCE, row.once_at_ms, -1
        if self._solar is None:
            raise InvalidSchedule("solar schedules need the package ephem on the host of the beat")
        latitude, longitude = float(row.solar_latitude or 0), float(row.solar_longitude or 0)
        self.polled[row.id] = self._solar(row.solar_event or "", latitude, longitude)
        return Kind.POLLED, 0, -1


def _payload(row: MonitorRow) -> bytes:
    args = (row.args or "").strip() or "[]"
    kwargs = (row.kwargs or "").strip() or "{}"
    return f"[{args}, {kwargs}]".encode()


def _columns(jobs: Sequence[_Job], compiler: _Compiler) -> DefinitionBatch:
    n = len(jobs)
    ids = np.fromiter((job.id for job in jobs), np.int64, n)
    windows_s = np.fromiter((job.window_s for job in jobs), np.int64, n)
    return DefinitionBatch(
        ids=ids,
        kind=np.fromiter((job.kind for job in jobs), np.uint8, n),
        interval_ms=np.fromiter((job.interval_ms for job in jobs), np.int64, n),
        anchor_ms=np.fromiter((job.anchor_ms for job in jobs), np.int64, n),
        offset_ms=runs.cron_offset_ms(ids, windows_s),
        cron_index=np.fromiter((job.cron_index for job in jobs), np.int32, n),
        flags=np.fromiter((job.flags for job in jobs), np.uint16, n),
        route_index=np.fromiter((job.route_index for job in jobs), np.uint32, n),
        start_ms=np.fromiter((job.start_ms for job in jobs), np.int64, n),
        end_ms=np.fromiter((job.end_ms for job in jobs), np.int64, n),
        incident_interval_ms=np.fromiter((job.incident_interval_ms for job in jobs), np.int64, n),
        incident_until_ms=np.fromiter((job.incident_until_ms for job in jobs), np.int64, n),
        effective_from_ms=np.fromiter((job.effective_from_ms for job in jobs), np.int64, n),
        payload=b"".join(job.payload for job in jobs),
        lengths=np.fromiter((len(job.payload) for job in jobs), np.uint32, n),
        names=b"".join(job.name for job in jobs),
        name_lengths=np.fromiter((len(job.name) for job in jobs), np.uint16, n),
        polled=compiler.polled,
        routes=list(compiler.routes),
    )
