"""Compares records with the stored monitors, reports the differences, and applies them.

Monitors are identified by name. Each record is validated as in the form and the beat, so no imported monitor is
invalid; a record with a problem changes nothing. Works in blocks of BLOCK_RECORDS, each in one short transaction, so
memory does not grow with the number of records.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import IntegrityError, transaction
from kombu.utils.json import loads

from celery_wheelbeat.errors import InvalidMonitor
from celery_wheelbeat.jobs.rows import Limits
from celery_wheelbeat.jobs.validation import check
from django_wheelbeat.database.actors import acting
from django_wheelbeat.models import Monitor
from django_wheelbeat.monitors.rows import row_of
from django_wheelbeat.monitors.settings import beat_settings
from django_wheelbeat.monitors.times import now_ms
from django_wheelbeat.monitors.validation import refusal_of
from django_wheelbeat.transfer.names import Names
from django_wheelbeat.transfer.records import columns_of, differing
from django_wheelbeat.transfer.sources import record_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from django_wheelbeat.monitors.queryset import MonitorQuerySet

    Given = tuple[int, Mapping[str, Any] | InvalidMonitor]
    """Line number (or key of the source) with its record, or with the problem that prevented reading it."""

BLOCK_RECORDS = 1_000
ERRORS_SHOWN = 100
DIFFERENCES_SHOWN = 50


class Problem(NamedTuple):
    """Why a record was left out."""

    line: int
    name: str
    reason: str


class Difference(NamedTuple):
    """Changes of one record: column → (before, after); ``before`` is None for a new monitor."""

    name: str
    is_new: bool
    columns: dict[str, tuple[Any, Any]]


class _Plan(NamedTuple):
    """The write for one line."""

    line: int
    monitor: Monitor
    """The monitor with its new values."""
    difference: Difference


class Report:
    """Result of an import or of a dry run."""

    def __init__(self) -> None:
        self.created = 0
        self.changed = 0
        self.unchanged = 0
        self.refused = 0
        self.problems: list[Problem] = []
        """The first ERRORS_SHOWN problems."""
        self.differences: list[Difference] = []
        """The first DIFFERENCES_SHOWN differences."""

    @property
    def found(self) -> int:
        """Number of records."""
        return self.created + self.changed + self.unchanged + self.refused

    def refuse(self, line: int, name: str, problem: object) -> None:
        """Count a record that was left out, with its problem."""
        self.refused += 1
        if len(self.problems) < ERRORS_SHOWN:
            self.problems.append(Problem(line, name, str(problem)))

    def differ(self, difference: Difference) -> None:
        """Count a record that creates or changes a monitor."""
        if difference.is_new:
            self.created += 1
        else:
            self.changed += 1
        if len(self.differences) < DIFFERENCES_SHOWN:
            self.differences.append(difference)


class Importer:
    """One import into database ``using``. ``actor`` and ``reason`` go into the change log.

    ``source``: ``Source.name`` of another scheduler; new monitors are recorded as imported from it.
    ``within``: queryset of the monitors that may be changed; None for all.
    """

    def __init__(
        self, using: str, actor: str = "", reason: str = "", source: str = "", *, within: MonitorQuerySet | None = None
    ) -> None:
        self._using = using
        self._within = None if within is None else within.using(using)
        self._actor = actor
        self.reason = reason
        self._source = source
        self._limits = Limits.of(beat_settings(), loads)
        self._now_ms = now_ms()
        """One-time monitors due up to this instant are imported as finished: an import runs nothing."""

    def dry_run(self, given: Iterable[Given]) -> Report:
        """Return the report of a dry run; writes nothing."""
        return self._import(given, write=False)

    def apply(self, given: Iterable[Given]) -> Report:
        """Apply the records; those with problems are left out and reported."""
        return self._import(given, write=True)

    def _import(self, given: Iterable[Given], *, write: bool) -> Report:
        report = Report()
        with Names() as names:
            for block in _blocks(given):
                if write:
                    with acting(self._actor, self.reason, using=self._using):
                        self._block(block, report, names, write=True)
                else:
                    self._block(block, report, names, write=False)
        return report

    def _block(self, block: Sequence[Given], report: Report, names: Names, *, write: bool) -> None:
        planned = self._planned(list(_readable(block, report, names)), report)
        refused = self._write(planned) if write else {}
        for plan in planned:
            if plan.line in refused:
                report.refuse(plan.line, plan.monitor.name, refused[plan.line])
            else:
                report.differ(plan.difference)

    def _planned(self, read: Sequence[tuple[int, dict[str, Any]]], report: Report) -> list[_Plan]:
        """Return the writes; unchanged and invalid records are only counted in ``report``."""
        names = [columns["name"] for _, columns in read]
        every = Monitor.objects.using(self._using).filter(name__in=names)
        stored = {monitor.name: monitor for monitor in every}
        if self._within is not None:
            may_change = set(self._within.filter(name__in=names).values_list("name", flat=True))
            read = list(_of_their_own(read, stored.keys() - may_change, report))
        planned = []
        for line, columns in read:
            try:
                plan = self._plan(line, columns, stored.get(columns["name"]))
            except Exception as error:
                report.refuse(line, columns["name"], problem_of(error))
                continue
            if plan is None:
                report.unchanged += 1
            else:
                planned.append(plan)
        return planned

    def _plan(self, line: int, columns: dict[str, Any], monitor: Monitor | None) -> _Plan | None:
        """Return the write for one record, None if nothing changes; raises ``InvalidMonitor`` if it cannot run."""
        is_new = monitor is None
        monitor = monitor or Monitor()
        changes = columns if is_new else differing(monitor, columns)
        if not changes:
            return None
        before = {column: None if is_new else getattr(monitor, column) for column in changes}
        for column, value in changes.items():
            setattr(monitor, column, value)
        for problem in check(row_of(monitor), limits=self._limits):
            raise problem
        if is_new and monitor.once_at is not None and (row_of(monitor).once_at_ms or 0) <= self._now_ms:
            monitor.finished_at = monitor.once_at
        shown = {column: (before[column], value) for column, value in changes.items()}
        return _Plan(line, monitor, Difference(columns["name"], is_new, shown))

    def _write(self, planned: Sequence[_Plan]) -> dict[int, InvalidMonitor]:
        """Write all at once, or one by one if that raises ``IntegrityError``. Return line → reason of refusal.

        The error occurs if another session adds a monitor of the same name between comparison and write.
        """
        try:
            with transaction.atomic(using=self._using):
                self._write_all(planned)
        except IntegrityError:
            refused = {}
            for plan in planned:
                try:
                    with transaction.atomic(using=self._using):
                        self._write_all([plan])
                except IntegrityError as error:
                    plan.monitor.pk = None
                    refused[plan.line] = self._refusal(plan, error)
            return refused
        return {}

    def _refusal(self, plan: _Plan, error: IntegrityError) -> InvalidMonitor:
        if plan.difference.is_new and Monitor.objects.using(self._using).filter(name=plan.monitor.name).exists():
            return InvalidMonitor("name", "has been added during this import; import again to change it")
        return InvalidMonitor("line", refusal_of(error, Monitor))

    def _write_all(self, planned: Sequence[_Plan]) -> None:
        monitors = Monitor.objects.using(self._using)
        new = [plan.monitor for plan in planned if plan.difference.is_new]
        monitors.bulk_create(new)
        if self._source and new:
            record_source(self._source, [monitor.name for monitor in new], using=self._using)
        updates: dict[tuple[tuple[str, Any], ...], list[int]] = defaultdict(list)
        for plan in planned:
            if not plan.difference.is_new:
                changes = tuple((column, after) for column, (_, after) in plan.difference.columns.items())
                updates[changes].append(plan.monitor.pk)
        for values, ids in updates.items():
            monitors.filter(pk__in=ids).update(**dict(values))


def problem_of(error: Exception) -> InvalidMonitor:
    """Return ``error`` as a problem of one record."""
    return error if isinstance(error, InvalidMonitor) else InvalidMonitor("line", f"cannot be read: {error!r:.500}")


def import_all(
    importer: Importer, source: Callable[[], Iterable[Given]], *, dry_run: bool, despite_errors: bool
) -> tuple[Report, bool]:
    """Check all records of ``source()``; then read it again and apply, unless ``dry_run`` or an error prevents it.

    Returns the report of the last pass, and whether it was applied.
    """
    report = importer.dry_run(source())
    if dry_run or (report.refused and not despite_errors):
        return report, False
    return importer.apply(source()), True


def _of_their_own(
    read: Iterable[tuple[int, dict[str, Any]]], names: AbstractSet[str], report: Report
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the records whose monitor is not in ``names``; report the others as problems."""
    for line, columns in read:
        if columns["name"] in names:
            report.refuse(line, columns["name"], InvalidMonitor("name", "belongs to a monitor that you may not see"))
        else:
            yield line, columns


def _blocks(given: Iterable[Given]) -> Iterator[list[Given]]:
    iterator = iter(given)
    while block := list(islice(iterator, BLOCK_RECORDS)):
        yield block


def _readable(block: Iterable[Given], report: Report, names: Names) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line and columns of records that can be parsed and are the first of their name; report the others."""
    for line, record in block:
        if isinstance(record, InvalidMonitor):
            report.refuse(line, "", record)
            continue
        name = record.get("name")
        try:
            columns = columns_of({"name": "", **record})
        except Exception as error:
            report.refuse(line, name if isinstance(name, str) else "", problem_of(error))
            continue
        if not columns["name"]:
            report.refuse(line, "", InvalidMonitor("name", "is missing"))
            continue
        first = names.first_line(columns["name"], line)
        if first != line:
            report.refuse(line, columns["name"], InvalidMonitor("name", f"is already on line {first}"))
            continue
        yield line, columns
