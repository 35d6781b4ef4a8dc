"""``scheduler.schedule``: one mapping of names to entries over ``beat_schedule`` and the monitors.

Writing concerns entries only; monitors are edited in the database. Reading a monitor builds its entry on the spot.
"""

from __future__ import annotations

from collections.abc import Collection, MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_wheelbeat.errors import InvalidMonitor
    from celery_wheelbeat.sources.monitor_entries import MonitorEntries


class ScheduleView(MutableMapping[str, Any]):
    """``data`` holds the entries; ``monitors`` is None until the beat has started."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.monitors: MonitorEntries | None = None
        self.version = 0
        """Grows with each change of ``data`` made through the view."""
        self.broken: dict[str, InvalidMonitor] = {}
        """Names of ``beat_schedule`` under which stands nothing that could be an entry, with the reason."""

    @property
    def names(self) -> Collection[str]:
        """Names of the entries, live."""
        return _Names(self)

    def replace(self, data: dict[str, Any]) -> None:
        """Make ``data`` the entries, also for those who hold the view."""
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
        """Remove an entry and return it, in one step: any thread may do so."""
        entry = self.data.pop(name, *default)
        self.version += 1
        return entry

    def clear(self) -> None:
        """Remove all entries."""
        self.data.clear()
        self.version += 1

    def refuse(self, name: str, problem: InvalidMonitor | None) -> None:
        """Remove an entry, if it is there; ``problem`` is why there cannot be one, None if nobody wants one."""
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
    """The names in ``ScheduleView.data``, whatever mapping that is at the moment; any thread may ask."""

    def __init__(self, view: ScheduleView) -> None:
        self._view = view

    def __contains__(self, name: object) -> bool:
        return name in self._view.data

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._view.data))

    def __len__(self) -> int:
        return len(self._view.data)
