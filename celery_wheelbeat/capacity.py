"""Capacity: whether the monitors of a table fit into this process, before the first of them is read.

Pure. A beat that is killed for its memory at four in the morning says nothing; one that refuses to start says why.
"""

from __future__ import annotations

JOB_BYTES = 100
"""What a job takes beside its name and arguments, with the room that tables and wheel need to grow."""
MIN_CHECKED_JOBS = 100_000
"""Below this the process itself is larger than its jobs, and the statistics of the database may be stale."""


def needed_bytes(jobs: int, text_bytes: float) -> int:
    """Return the memory that ``jobs`` need whose names and arguments have ``text_bytes`` on average."""
    return round(jobs * (JOB_BYTES + text_bytes))


def refusal(jobs: int, text_bytes: float, *, max_jobs: int, available_bytes: int | None) -> str | None:
    """Say why ``jobs`` monitors cannot be held, or None; ``available_bytes`` is None where that is not known."""
    if jobs > max_jobs:
        return (
            f"the table has about {jobs:,} monitors, wheelbeat_max_jobs allows {max_jobs:,}: raise it, or share the"
            " monitors among several beats"
        )
    needed = needed_bytes(jobs, text_bytes)
    if jobs >= MIN_CHECKED_JOBS and available_bytes is not None and needed > available_bytes:
        return (
            f"about {jobs:,} monitors need {needed / 1e9:.1f} GB ({JOB_BYTES} bytes each, and {text_bytes:.0f} of name"
            f" and arguments), but {available_bytes / 1e9:.1f} GB are available to this process: give it more memory,"
            " or share the monitors among several beats"
        )
    return None
