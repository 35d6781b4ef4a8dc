"""Overrides of Celery's scheduler that have no effect here; the start logs them.

Fire times are computed from the schedules; ``Entry.is_due`` is never called. Pure; reads classes only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery.beat import ScheduleEntry, Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterator

_OF_SCHEDULER = (
    "is_due", "reserve", "populate_heap", "schedules_equal", "adjust", "producer", "connection",
)  # fmt: skip
"""Methods that Celery's own ``tick`` calls and this scheduler does not."""
_OF_ENTRY = ("is_due", "_next_instance", "next", "__next__")


def unused(scheduler: type, entry: type, ours: type) -> list[str]:
    """Return the overrides without effect in a scheduler class (a subclass of ``ours``) and in its entry class."""
    found = [*_overridden(scheduler, ours, _OF_SCHEDULER), *_overridden(entry, ScheduleEntry, _OF_ENTRY)]
    return list(dict.fromkeys(found))


def _overridden(cls: type, base: type, names: tuple[str, ...]) -> Iterator[str]:
    known = {*base.__mro__, *Scheduler.__mro__}
    for name in names:
        owner = next((one for one in cls.__mro__ if name in vars(one)), None)
        if owner is not None and owner not in known:
            yield f"{owner.__name__}.{name}"
