"""Lane rules: which jobs take the celery lane because of their definition, and the reasons for it.

Pure. Dispatch, the lane report and ``explain`` share these rules, so their answers agree. A reason is a sentence about
one job; docs/howto/lanes.md gives the remedy for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from celery_wheelbeat.jobs.definitions import OVERLAP_SHIFT, Flag

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from celery_wheelbeat.schedules.kinds import Int64s

ENTRY = "it is an entry of beat_schedule, whose objects are the user's and may change at any moment"
ONE_OFF = "it is a one-off job, done after its first confirmed run"
EXPIRES_NEXT = "it expires at its next fire time, which differs from run to run"
HANDED_OUT = "somebody asked the scheduler for its entry, and may write to it"
UNFIT = "its arguments do not render"
FORMS_MAX = 1_000
"""Most message forms with an envelope; each costs some milliseconds and some kilobytes."""
TOO_MANY_FORMS = f"more than {FORMS_MAX:,} kinds of messages are in use, which differ in queue, expiry or options"
CHECKED_IN = "Sentry checks in for its runs (monitor_beat_tasks; exclude_beat_tasks leaves jobs out)"

KIND_SHIFT = 2
"""Low bits of a kind: the overlap policy, which is a header of the message. The high bits are the route index."""


def apart(ids: Int64s, flags: NDArray[np.uint16]) -> NDArray[np.bool_]:
    """Return which jobs take the celery lane because of their definition: entries and one-off jobs."""
    return (ids < 0) | ((flags & Flag.ONE_OFF) > 0)


def reason_apart(job_id: int, flags: int) -> str | None:
    """Return why the definition of a job needs the celery lane; None if it does not."""
    if job_id < 0:
        return ENTRY
    return ONE_OFF if flags & Flag.ONE_OFF else None


def apart_by_reason(
    ids: NDArray[np.integer[Any]], flags: NDArray[np.uint16]
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield each reason with a mask of the jobs that it applies to; a job has at most one reason."""
    entries = ids < 0
    yield ENTRY, entries
    yield ONE_OFF, ~entries & ((flags & Flag.ONE_OFF) > 0)


def kinds(route: NDArray[np.unsignedinteger[Any]], flags: NDArray[np.uint16]) -> Int64s:
    """Return the kind of each job: route index and overlap policy, packed."""
    overlap = (flags >> OVERLAP_SHIFT & 3).astype(np.int64)
    return route.astype(np.int64) << KIND_SHIFT | overlap
