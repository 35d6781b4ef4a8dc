"""``scheduler.schedule``: one mapping of names to entries over ``beat_schedule`` and the monitors.

Writing concerns entries only; monitors are edited in the database. Reading a monitor builds its entry on the spot.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, MutableMapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kombu.utils.json import loads

from celery_wheelbeat.errors import InvalidMonitor, reason_of
from celery_wheelbeat.jobs.definitions import Flag
from celery_wheelbeat.jobs.identity import LATER_IDS_FROM
from celery_wheelbeat.schedules.fire_times import instant
from celery_wheelbeat.sources.beat_schedule.celery_objects import celery_schedule_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_wheelbeat.engine.engine import Engine
    from celery_wheelbeat.engine.shards import JobView
    from celery_wheelbeat.jobs.definitions import ChangeBatch


REMEMBERED_MAX = 10_000
"""Bound of cached entries, above which unmodified ones are dropped; also the bound of cached parsed options."""
_CHUNK = 4_096


class ScheduleView(MutableMapping[str, Any]):
    """``data`` holds the entries; ``monitors`` is None until the beat has started."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.monitors: MonitorEntries | None = None
        self.version = 0
        """Incremented by each change of ``data`` through the view."""
        self.broken: dict[str, InvalidMonitor] = {}
        """Names in ``beat_schedule`` whose value cannot be an entry → the reason."""

    @property
    def names(self) -> Collection[str]:
        """Names of the entries, live."""
        return _Names(self)

    def replace(self, data: dict[str, Any]) -> None:
        """Replace the entries by ``data``; existing references to the view see the new ones."""
        self.data = data
        self.broken.clear()
        self.version += 1

    def __getitem__(self, name: str) -> Any:
        if name in self.data:
            return self.data[name]
        entry = self.monitors.find(name) if self.monitors is not None and isinstance(name, str) else None
        if entry is None:
            raise KeyError(name)
        return entry

    def __setitem__(self, name: str, entry: Any) -> None:
        self.data[name] = entry
        self.broken.pop(name, None)
        self.version += 1

    def __delitem__(self, name: str) -> None:
        del self.data[name]
        self.version += 1

    def pop(self, name: str, *default: Any) -> Any:
        """Remove an entry and return it, atomically: any thread may call this."""
        entry = self.data.pop(name, *default)
        self.version += 1
        return entry

    def clear(self) -> None:
        """Remove all entries."""
        self.data.clear()
        self.version += 1

    def refuse(self, name: str, problem: InvalidMonitor | None) -> None:
        """Remove the entry if it exists; ``problem``: why there can be none, None if it is simply removed."""
        self.data.pop(name, None)
        self.broken.pop(name, None)
        if problem is not None:
            self.broken[name] = problem
        self.version += 1

    def __iter__(self) -> Iterator[str]:
        yield from list(self.data)
        if self.monitors is not None:
            yield from (name for name in self.monitors if name not in self.data)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self.data)} entries of beat_schedule>"


class _Names(Collection[str]):
    """A live view of the names in ``ScheduleView.data``, also after ``replace``; thread-safe."""

    def __init__(self, view: ScheduleView) -> None:
        self._view = view

    def __contains__(self, name: object) -> bool:
        return name in self._view.data

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._view.data))

    def __len__(self) -> int:
        return len(self._view.data)


class MonitorEntries:
    """Builds entries from the engine's jobs. Other threads may look up names."""

    def __init__(self, app: Any, entry_class: type, engine: Engine) -> None:
        self._app = app
        self._entry_class = entry_class
        self._engine = engine
        self._options: dict[str, dict[str, Any]] = {}
        """Parsed options by their JSON text."""
        self._handed_out: dict[str, tuple[int, Any]] = {}

    def __iter__(self) -> Iterator[str]:
        """Yield the names of all enabled monitors, in no particular order."""
        for view in self._views():
            yield view.name

    def find(self, name: str) -> Any:
        """Return the entry of the monitor with this name, or None. Searches all jobs; not used for runs."""
        known = self._handed_out.get(name)
        if known is not None:
            return known[1]
        found = self._engine.lookup(self._engine.shards.named(name))
        view = next((view for view in found if view is not None and _is_monitor(view) and view.name == name), None)
        if view is None:
            return None
        if len(self._handed_out) >= REMEMBERED_MAX:
            self._forget_unchanged()
        entry = self._build(view, self._options_of(view), datetime.now(UTC))
        self._handed_out[name] = (view.id, entry)
        return entry

    def handed_out(self) -> frozenset[int]:
        """Return the jobs whose entries were handed out by name and may have been modified."""
        return frozenset(known[0] for known in list(self._handed_out.values()))

    def redefined(self, changes: ChangeBatch) -> None:
        """Drop the cached entries of jobs whose definitions have changed."""
        if self._handed_out:
            changed = set(changes.ids.tolist())
            there = list(self._handed_out.items())
            self._handed_out = {name: known for name, known in there if known[0] not in changed}

    def entry_for(self, view: JobView, fire_ms: int) -> Any:
        """Return a private entry for the run at ``fire_ms``.

        Raises ``InvalidMonitor`` for args that are not JSON, and any exception of a user's ``Entry`` class.
        """
        handed_out = self._handed_out.get(view.name)
        options = self._options_of(view) if handed_out is None else private_options(handed_out[1].options)
        if self._engine.routes[view.route_index].expires_next and "expires" not in options:
            next_ms = self._engine.next_fire(view.id, fire_ms)
            if next_ms is not None:
                options["expires"] = instant(next_ms)
        return self._build(view, options, instant(fire_ms))

    def _build(self, view: JobView, options: dict[str, Any], last_run_at: datetime) -> Any:
        args, kwargs = _read("args", view.payload)
        return self._entry_class(
            name=view.name,
            task=self._engine.routes[view.route_index].task,
            args=args,
            kwargs=kwargs,
            options=options,
            schedule=celery_schedule_of(self._engine.schedule_of(view.id)),
            last_run_at=last_run_at,
            app=self._app,
        )

    def _options_of(self, view: JobView) -> dict[str, Any]:
        text = self._engine.routes[view.route_index].options
        if text not in self._options:
            if len(self._options) >= REMEMBERED_MAX:
                self._options.clear()
            self._options[text] = _read("options", text)
        return copy.deepcopy(self._options[text])

    def _forget_unchanged(self) -> None:
        by_name = {view.name: view for view in self._views() if view.name in self._handed_out}
        self._handed_out = {
            name: known
            for name, known in list(self._handed_out.items())
            if name in by_name and known[1].options != self._options_of(by_name[name])
        }

    def _views(self) -> Iterator[JobView]:
        for shard in self._engine.shards:
            ids = shard.table.ids(slice(shard.table.row_count))
            for start in range(0, len(ids), _CHUNK):
                for view in self._engine.lookup(ids[start : start + _CHUNK]):
                    if view is not None and _is_monitor(view) and view.flags & Flag.ENABLED:
                        yield view


def _is_monitor(view: JobView) -> bool:
    return 0 <= view.id < LATER_IDS_FROM


def private_options(options: dict[str, Any]) -> dict[str, Any]:
    """Copy the parts of an entry's options that extensions write to: the dict and its headers."""
    private = dict(options)
    if private.get("headers"):
        private["headers"] = dict(private["headers"])
    return private


def private_entry(entry: Any, fire_ms: int) -> Any:
    """Return a copy of an entry of ``beat_schedule`` for the run at ``fire_ms``; None for None."""
    if entry is None:
        return None
    private = entry.__class__.__new__(entry.__class__)
    private.__dict__.update(entry.__dict__, options=private_options(entry.options), last_run_at=instant(fire_ms))
    return private


def _read(field: str, text: str | bytes) -> Any:
    try:
        return loads(text)  # type: ignore[no-untyped-call]  # kombu's own JSON: knows dates, decimals and UUIDs
    except Exception as error:
        raise InvalidMonitor(field, reason_of(error)) from error
