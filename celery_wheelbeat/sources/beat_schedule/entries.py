"""Compile entries of ``beat_schedule`` to ``ChangeBatch``, the same shape that a database of monitors delivers.

An entry's job id is the FNV-1a hash of its name, moved on a collision. Its phase comes from the unmoved hash, so
another entry never shifts it. A broken entry is quarantined with its reason and never stops the others. Entries belong
to the user: this module must never write to them.
"""

from __future__ import annotations

import hashlib
import numbers
import operator
from datetime import timedelta
from reprlib import repr as short_repr
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from celery_wheelbeat.errors import InvalidMonitor, InvalidSchedule, reason_of
from celery_wheelbeat.jobs import identity as runs
from celery_wheelbeat.jobs.definitions import ChangeBatch, DefinitionBatch, EntryMark, Misfire, Route, flags_of
from celery_wheelbeat.schedules.cron import Cron
from celery_wheelbeat.schedules.kinds import ALWAYS_MS, NEVER_MS, Kind
from celery_wheelbeat.sources.beat_schedule.celery_schedules import polled, translate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from celery_wheelbeat.schedules.cron import CronTable
    from celery_wheelbeat.schedules.intervals import Interval
    from celery_wheelbeat.schedules.kinds import Polled

_LOWEST_ID = -(2**63)
MAX_NAME_BYTES = 65_535
"""Bound of entry names, much longer than a monitor's: Celery names an added periodic task by its whole signature."""


_SCHEDULES = "expected a number of seconds, a timedelta or a Celery schedule such as crontab()"
_FORMS = (("args", "__iter__", "a list or a tuple"), ("kwargs", "items", "a dict"), ("options", "items", "a dict"))
"""(attribute of an entry, attribute that its value must have, description for the message)."""


class _KnownEntry(NamedTuple):
    job_id: int
    task: str
    schedule: Any
    """The Celery schedule object that was compiled."""
    mark: EntryMark
    """Instant since which the entry has its schedule; bounds its gap at a restart."""

    def stands_for(self, entry: Any) -> bool:
        """Return whether ``entry`` is unchanged since it was compiled; its schedule may have been replaced."""
        try:
            return bool(self.schedule is entry.schedule and self.task == entry.task)
        except Exception:
            return False


def key_of(name: str) -> str:
    """Return the text key of an entry: part of its run ids, so it never changes."""
    return f"entry:{name}"


class Entries:
    """The entries in force, by name and by job id.

    ``timezone``: zone of crontabs without one of their own (``timezone_of``); None: they are polled.
    """

    def __init__(self, timezone: str | None, crons: CronTable, stored: Mapping[str, EntryMark] | None = None) -> None:
        """``stored``: see ``remember``."""
        self.refused: dict[str, InvalidMonitor] = {}
        """Broken entries by name, with the reason."""
        self._timezone = timezone
        self._crons = crons
        self._stored = dict(stored or {})
        self._known: dict[str, _KnownEntry] = {}
        self._looked_at: dict[str, tuple[Any, ...]] = {}
        """Name of a broken entry → the objects that were found broken."""
        self._names: dict[int, str] = {}
        self._nothing = ChangeBatch(self._batch(()), np.empty(0, np.int64))

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __len__(self) -> int:
        return len(self._known)

    def name_of(self, job_id: int) -> str:
        """Return the name of the entry with this job id; raises ``KeyError``."""
        return self._names[job_id]

    def id_of(self, name: str) -> int:
        """Return the job id of the entry; raises ``KeyError``."""
        return self._known[name].job_id

    def ids(self) -> list[int]:
        """Return the job ids of all entries in force."""
        return list(self._names)

    def recompile(self, ids: Iterable[int]) -> None:
        """Return these entries again with the next ``changes``."""
        for job_id in ids:
            name = self._names.get(job_id)
            if name is not None:
                self._known[name] = self._known[name]._replace(schedule=None)

    def marks(self) -> dict[str, EntryMark]:
        """Return, per entry, the schedule hash and the instant since which it holds, for the mark document."""
        return {name: known.mark for name, known in self._known.items()}

    def remember(self, stored: Mapping[str, EntryMark]) -> None:
        """Take in the entry marks of an earlier process; call before the first ``changes``."""
        self._stored = dict(stored)

    def changes(
        self, entries: Mapping[str, Any], now_ms: int, broken: Mapping[str, InvalidMonitor] = MappingProxyType({})
    ) -> ChangeBatch:
        """Put ``entries`` (name → ``ScheduleEntry``) in force and return the changes.

        Called every second, because other code may modify an entry at any time; cheap if nothing has changed.
        ``broken``: names of which no entry could be made → the reason.
        """
        changed: list[tuple[_KnownEntry, _Definition]] = []
        for name in self._suspects(entries):
            entry, known = entries[name], self._known.get(name)
            if known.stands_for(entry) if known is not None else self._is_refused(name, entry):
                continue
            try:
                _check_name(name)
                definition = self._define(entry)
            except Exception as error:
                self._refuse(name, entry, error)
            else:
                self.refused.pop(name, None)
                changed.append((self._admit(name, entry, definition, now_ms), definition))
        gone = (self._known.keys() - entries.keys()) | (self._known.keys() & self.refused.keys())
        for name in [name for name in self.refused if name not in entries]:
            del self.refused[name]
        self._looked_at = {name: seen for name, seen in self._looked_at.items() if name in self.refused}
        self.refused.update(broken)
        if not changed and not gone:
            return self._nothing
        deleted = np.array(sorted(self._forget(name) for name in gone), dtype=np.int64)
        return ChangeBatch(self._batch(changed), deleted)

    def _suspects(self, entries: Mapping[str, Any]) -> list[str]:
        """Return the names of entries that may have changed since they were compiled; about 1 µs per unchanged one."""
        known = self._known
        try:
            return [
                name
                for name, entry in entries.items()
                if (there := known.get(name)) is None
                or there.schedule is not entry.schedule
                or there.task != entry.task
            ]
        except Exception:  # raised by a foreign attribute: compare the entries one by one
            return list(entries)

    def _refuse(self, name: str, entry: Any, error: Exception) -> None:
        seen = _objects_of(entry)
        self.refused[name] = error if isinstance(error, InvalidMonitor) else problem_of(seen[1], error)
        self._looked_at[name] = seen

    def _is_refused(self, name: str, entry: Any) -> bool:
        """Return whether a broken entry still has the objects that were found broken."""
        seen, now = self._looked_at.get(name, ()), _objects_of(entry)
        return name in self.refused and len(seen) == len(now) and all(map(operator.is_, seen, now))

    def _define(self, entry: Any) -> _Definition:
        if not isinstance(entry.task, str) or not entry.task:
            raise InvalidMonitor("task", f"{entry.task!r}: expected the name of a task")
        if not _is_schedule(entry.schedule):
            raise InvalidMonitor("schedule", f"{_shown(entry.schedule)}: {_SCHEDULES}")
        for name, attribute, expected in _FORMS:
            value = getattr(entry, name)
            if value and (not hasattr(value, attribute) or hasattr(value, "__next__")):  # it can be read only once
                raise InvalidMonitor(name, f"{_shown(value)}: expected {expected}")
        schedule = translate(entry.schedule, timezone=self._timezone)
        return _Definition(schedule, polled(entry.schedule) if schedule is None else None)

    def _admit(self, name: str, entry: Any, definition: _Definition, now_ms: int) -> _KnownEntry:
        digest = _schedule_hash(entry.schedule, definition)
        known = self._known.get(name)
        mark = known.mark if known else self._stored.get(name)
        if mark is None or mark.definition_hash != digest:
            mark = EntryMark(digest, now_ms)
        job_id = known.job_id if known else self._free_id(name)
        self._names[job_id] = name
        self._known[name] = _KnownEntry(job_id, entry.task, entry.schedule, mark)
        return self._known[name]

    def _free_id(self, name: str) -> int:
        job_id = runs.entry_id(name)
        while job_id in self._names:
            job_id = job_id - 1 if job_id > _LOWEST_ID else -1
        return job_id

    def _forget(self, name: str) -> int:
        job_id = self._known.pop(name).job_id
        self._stored.pop(name, None)  # if the entry comes back, it has its schedule since then
        del self._names[job_id]
        return job_id

    def _batch(self, changed: Sequence[tuple[_KnownEntry, _Definition]]) -> DefinitionBatch:
        changed = sorted(changed, key=lambda pair: pair[0].job_id)
        n = len(changed)
        names = [self._names[known.job_id].encode() for known, _ in changed]
        routes = {route: at for at, route in enumerate({Route(known.task): None for known, _ in changed})}
        flags = flags_of(enabled=True, one_off=False, misfire=Misfire.LATEST)
        return DefinitionBatch(
            ids=np.array([known.job_id for known, _ in changed], dtype=np.int64),
            kind=np.array([definition.kind for _, definition in changed], dtype=np.uint8),
            interval_ms=np.array([definition.interval_ms for _, definition in changed], dtype=np.int64),
            anchor_ms=np.zeros(n, dtype=np.int64),
            offset_ms=np.array(
                [definition.offset_ms(self._names[known.job_id]) for known, definition in changed], dtype=np.int64
            ),
            cron_index=np.array([definition.cron_index(self._crons) for _, definition in changed], dtype=np.int32),
            flags=np.full(n, flags, dtype=np.uint16),
            route_index=np.array([routes[Route(known.task)] for known, _ in changed], dtype=np.uint32),
            start_ms=np.full(n, ALWAYS_MS, dtype=np.int64),
            end_ms=np.full(n, NEVER_MS, dtype=np.int64),
            incident_interval_ms=np.zeros(n, dtype=np.int64),
            incident_until_ms=np.zeros(n, dtype=np.int64),
            effective_from_ms=np.array([known.mark.effective_from_ms for known, _ in changed], dtype=np.int64),
            payload=b"",
            lengths=np.zeros(n, dtype=np.uint32),
            names=b"".join(names),
            name_lengths=np.array([len(name) for name in names], dtype=np.uint16),
            polled={known.job_id: asked for known, definition in changed if (asked := definition.polled) is not None},
            routes=list(routes),
        )


class _Definition(NamedTuple):
    """A compiled Celery schedule: computed, or polled in the poll lane."""

    computed: Interval | Cron | None
    polled: Polled | None

    @property
    def kind(self) -> int:
        if self.computed is None:
            return Kind.POLLED
        return Kind.CRON if isinstance(self.computed, Cron) else Kind.INTERVAL

    @property
    def interval_ms(self) -> int:
        return 0 if self.computed is None or isinstance(self.computed, Cron) else self.computed.interval_ms

    def offset_ms(self, name: str) -> int:
        """Return the jitter of an interval; crons of ``beat_schedule`` fire exactly on their minute."""
        return runs.interval_offset_ms(runs.entry_id(name), self.interval_ms) if self.kind == Kind.INTERVAL else 0

    def cron_index(self, crons: CronTable) -> int:
        return crons.intern(self.computed) if isinstance(self.computed, Cron) else -1


def problem_of(schedule: Any, error: Exception) -> InvalidMonitor:
    """Return why an entry with this ``schedule`` could not be created; its constructor raised ``error``."""
    if isinstance(error, InvalidSchedule):
        return InvalidMonitor("schedule", str(error))
    if schedule is not None and not _is_schedule(schedule):
        return InvalidMonitor("schedule", f"{_shown(schedule)}: {_SCHEDULES}")
    return InvalidMonitor("entry", reason_of(error))


def given_schedule(given: Any) -> Any:
    """Return the schedule of a value in ``beat_schedule``, None if it has none."""
    return given.get("schedule") if hasattr(given, "get") else getattr(given, "schedule", None)


def _is_schedule(value: Any) -> bool:
    try:
        return isinstance(value, (numbers.Real, timedelta)) or hasattr(value, "is_due")
    except Exception:
        return False


def _shown(value: Any) -> str:
    return f"{short_repr(value)} ({type(value).__name__})"


def _objects_of(entry: Any) -> tuple[Any, ...]:
    """Return the objects that define an entry; ``(entry, None)`` if it lacks one of them."""
    try:
        return entry, entry.schedule, entry.task, entry.args, entry.kwargs, entry.options
    except Exception:
        return entry, None


def _check_name(name: object) -> None:
    """Raise ``InvalidMonitor`` for a name that cannot be part of a run id."""
    if not isinstance(name, str):
        raise InvalidMonitor("name", f"{name!r:.80}: expected a text")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidMonitor("name", "contains a lone surrogate, which cannot be sent") from None
    if size > MAX_NAME_BYTES:
        raise InvalidMonitor("name", f"has {size:,} bytes, at most {MAX_NAME_BYTES:,} are allowed")


def _schedule_hash(schedule: Any, definition: _Definition) -> str:
    """Return 16 hex digits that change when the fire times change; for a polled schedule, only with its class."""
    kind = type(schedule)
    text = f"{kind.__module__}.{kind.__qualname__}" if definition.computed is None else repr(definition.computed)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
