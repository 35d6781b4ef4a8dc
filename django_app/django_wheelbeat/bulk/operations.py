"""Bulk operations on monitors: pause, resume, edit, delete, speed up, end an incident, try again.

An operation changes those monitors of a chunk that need it; none is a toggle. Does not need Django's admin.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from django.db import IntegrityError, connections, transaction
from django.db.models import ProtectedError, RestrictedError
from django.utils.translation import gettext as _
from kombu.utils.json import loads

from celery_wheelbeat.jobs.rows import Limits
from celery_wheelbeat.jobs.validation import check
from django_wheelbeat.bulk.dependents import tables_that_only_the_database_checks
from django_wheelbeat.monitors.form_fields import EXPIRES_NEXT
from django_wheelbeat.monitors.rows import row_of
from django_wheelbeat.monitors.settings import beat_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from django_wheelbeat.models import Monitor

CHANGE, DELETION = 2, 3
"""Flags of Django's ``LogEntry``; its module cannot be imported if the admin is not installed."""
TAGS_LENGTH = 255
NOT_READ = ("id", "name", "args", "kwargs", "description", "active_before", "effective_from", "finished_at")
"""Columns that a bulk edit neither changes nor validates; monitors that differ only in these are validated once."""

CLEARED: Mapping[str, Mapping[str, Any]] = {
    "queue": {"queue": ""},
    "priority": {"priority": None},
    "expires": {"expires_s": None, "expires_next": False},
    "tags": {"tags": ""},
}
"""What a bulk edit can clear: choice → columns with their empty values."""


class Outcome(NamedTuple):
    """Result of one chunk."""

    changed: Sequence[int]
    """Primary keys of changed monitors."""
    refused: dict[str, str]
    """Name → reason why the monitor was not changed."""


class Note(NamedTuple):
    """Writes Django's history of monitors, given their primary keys; call it while the monitors exist."""

    write: Callable[[Sequence[int]], None]
    using: str
    """Alias of the database that holds the history."""

    @classmethod
    def nothing(cls, using: str) -> Note:
        """Return a ``Note`` that writes no history; ``using``: database of the monitors."""
        return cls(lambda _keys: None, using)


class Operation(Protocol):
    """A change to many monitors, and its description in change log and history."""

    flag: int
    """``action_flag`` of Django's ``LogEntry``."""
    reason: str
    """Written to the change log."""
    message: str
    """Written to Django's history."""

    def apply(self, chunk: Any, note: Note) -> Outcome:
        """Change those of ``chunk`` (a queryset of up to a few thousand) that need it; runs inside a transaction."""


def _keys(chunk: Any) -> list[int]:
    """Lock the rows in key order: exactly these rows change, and two bulk changes cannot deadlock."""
    return list(chunk.select_for_update().order_by("pk").values_list("pk", flat=True))


@dataclass(frozen=True)
class Pause:
    """Disable monitors that are enabled."""

    reason: str
    flag: int = CHANGE

    @property
    def message(self) -> str:
        """See ``Operation``."""
        return _("Paused: %(reason)s") % {"reason": self.reason}

    def apply(self, chunk: Any, note: Note) -> Outcome:
        """See ``Operation``."""
        chunk = chunk.filter(enabled=True)
        keys = _keys(chunk)
        chunk.pause(self.reason)
        note.write(keys)
        return Outcome(keys, {})


@dataclass(frozen=True)
class Resume:
    """Enable monitors that are disabled."""

    reason: str = ""
    flag: int = CHANGE

    @property
    def message(self) -> str:
        """See ``Operation``."""
        return f"{_('Resumed.')} {self.reason}".strip()

    def apply(self, chunk: Any, note: Note) -> Outcome:
        """See ``Operation``."""
        chunk = chunk.filter(enabled=False)
        keys = _keys(chunk)
        chunk.resume()
        note.write(keys)
        return Outcome(keys, {})


@dataclass(frozen=True)
class Delete:
    """Delete monitors with their cascading dependents; monitors that another object protects are kept."""

    reason: str = ""
    flag: int = DELETION
    message: str = ""

    def apply(self, chunk: Any, note: Note) -> Outcome:
        """See ``Operation``."""
        refused: dict[str, str] = {}
        every = chunk.model._default_manager.using(chunk.db)
        return Outcome(self._delete(every, _keys(chunk), note, refused), refused)

    def _delete(self, every: Any, keys: list[int], note: Note, refused: dict[str, str]) -> list[int]:
        """Write the history and delete all; if the database refuses, retry each half separately."""
        try:
            with transaction.atomic(using=every.db), transaction.atomic(using=note.using):
                note.write(keys)
                every.filter(pk__in=keys).delete()
                unchecked = tables_that_only_the_database_checks(every.model)
                if unchecked:
                    connections[every.db].check_constraints(unchecked)
        except (ProtectedError, RestrictedError, IntegrityError) as error:
            if len(keys) > 1:
                halves = keys[: len(keys) // 2], keys[len(keys) // 2 :]
                return [key for half in halves for key in self._delete(every, half, note, refused)]
            refused[every.get(pk=keys[0]).name] = _kept_by(error)
            return []
        return keys


def _kept_by(error: Exception) -> str:
    match error:
        case ProtectedError(protected_objects=objects) | RestrictedError(restricted_objects=objects):
            kept_by = next(iter(objects))
            return _("referenced by %(kind)s “%(object)s”") % {"kind": kept_by._meta.verbose_name, "object": kept_by}
    return _("referenced by a row of another table: %(problem)s") % {"problem": str(error).strip().partition("\n")[0]}


@dataclass(frozen=True)
class Edit:
    """Set some columns. A monitor that could not run afterwards is not changed and is reported with the reason."""

    reason: str
    values: Mapping[str, Any]
    """Column → new value."""
    tags_added: frozenset[str] = frozenset()
    tags_removed: frozenset[str] = frozenset()
    flag: int = CHANGE
    limits: Limits = field(default_factory=lambda: Limits.of(beat_settings(), loads))

    @property
    def message(self) -> str:
        """See ``Operation``."""
        changed = [*self.values, *(["tags"] if self.tags_added or self.tags_removed else [])]
        text = _("Changed in bulk: %(fields)s.") % {"fields": ", ".join(changed)}
        return f"{text} {self.reason}".strip()

    def apply(self, chunk: Any, note: Note) -> Outcome:
        """Validate monitors with their new values by the engine's checks, once per group of equal definitions.

        Executes one UPDATE per distinct set of new values.
        """
        groups: dict[tuple[tuple[str, Any], ...], list[int]] = defaultdict(list)
        changed: list[int] = []
        refused: dict[str, str] = {}
        for monitor, named in self._alike(chunk):
            new = self._differing(monitor)
            if not new:
                continue
            for column, value in new.items():
                setattr(monitor, column, value)
            problem = self._problem(monitor)
            if problem:
                refused |= dict.fromkeys(named.values(), problem)
            else:
                changed += named
                groups[tuple(new.items())] += named
        for new_values, ids in groups.items():
            chunk.model._default_manager.using(chunk.db).filter(pk__in=ids).update(**dict(new_values))
        note.write(changed)
        return Outcome(changed, refused)

    def _alike(self, chunk: Any) -> Iterator[tuple[Monitor, dict[int, str]]]:
        """Lock the rows; yield one monitor per group of equal definitions, with primary key → name of the group."""
        columns = [column.attname for column in chunk.model._meta.concrete_fields if column.attname not in NOT_READ]
        kinds: dict[tuple[Any, ...], dict[int, str]] = defaultdict(dict)
        rows = chunk.select_for_update().order_by("pk").values_list("pk", "name", *columns)
        for pk, name, *definition in rows.iterator():
            kinds[tuple(definition)][pk] = name
        for definition, named in kinds.items():
            first = next(iter(named.items()))
            yield chunk.model.from_db(chunk.db, ["id", "name", *columns], [*first, *definition]), named

    def _problem(self, monitor: Monitor) -> str:
        problems = check(row_of(monitor), limits=self.limits)
        if problems:
            return str(problems[0])
        if len(monitor.tags) > TAGS_LENGTH:
            return _("its tags would have more than %(most)d characters") % {"most": TAGS_LENGTH}
        return ""

    def _differing(self, monitor: Monitor) -> dict[str, Any]:
        new = dict(self.values)
        if self.tags_added or self.tags_removed:
            had = set(filter(None, new.get("tags", monitor.tags).split(",")))
            new["tags"] = ",".join(sorted((had | self.tags_added) - self.tags_removed))
        return {column: value for column, value in new.items() if getattr(monitor, column) != value}


def expiry_columns(expires: float | str | None) -> dict[str, Any]:
    """Return the column values for a cleaned value of ``ExpiresField``."""
    if expires == EXPIRES_NEXT:
        return {"expires_s": None, "expires_next": True}
    return {"expires_s": expires, "expires_next": False}


@dataclass(frozen=True)
class SpeedUp:
    """Start an incident (a faster interval until an instant) for monitors with a slower grid."""

    reason: str
    every_ms: int
    until: datetime
    flag: int = CHANGE

    @property
    def message(self) -> str:
        """See ``Operation``."""
        text = _("Incident until %(end)s.") % {"end": self.until.isoformat()}
        return f"{text} {self.reason}".strip()

    def apply(self, chunk: Any, note: Note) -> Outcome:
        """See ``Operation``."""
        chunk = chunk.slower_than(self.every_ms)
        keys = _keys(chunk)
        chunk.speed_up(self.every_ms / 1000, self.until)
        note.write(keys)
        return Outcome(keys, {})


@dataclass(frozen=True)
class TryAgain:
    """Make beats read quarantined monitors again; changes no column."""

    actor: str
    reason: str
    flag: int = CHANGE

    @property
    def message(self) -> str:
        """See ``Operation``."""
        return _("Tried again.")

    def apply(self, chunk: Any, note: Note) -> Outcome:
        """See ``Operation``."""
        keys = _keys(chunk)
        chunk.touch(self.actor, self.reason)
        note.write(keys)
        return Outcome(keys, {})


@dataclass(frozen=True)
class EndIncident:
    """Return to the base schedule immediately."""

    reason: str = ""
    flag: int = CHANGE

    @property
    def message(self) -> str:
        """See ``Operation``."""
        return f"{_('Incident ended.')} {self.reason}".strip()

    def apply(self, chunk: Any, note: Note) -> Outcome:
        """See ``Operation``."""
        chunk = chunk.filter(incident_until__isnull=False)
        keys = _keys(chunk)
        chunk.end_incident()
        note.write(keys)
        return Outcome(keys, {})
