"""Engine: definitions and the current time in, due runs out.

Job. ``Engine.load`` and ``apply`` take definitions; ``advance`` empties the wheel up to an instant. Missed fire times
are offered or skipped by one rule (``misfire``). Every fire time is entered in the ``Ledger``. The watchdog checks one
shard at a time and repairs it.

Threads and owners. The scheduling thread owns everything here; nothing is locked. ``Engine`` owns ``Shards``,
``PollLane`` and ``Watchdog``; ``Shards`` owns ``Payloads``; a ``Shard`` owns its ``Table``, ``Wheel`` and ``Recount``.
The ``CronTable`` is shared with the threads that compile definitions.

States of an enabled job::

    append        file               promote          pop
    -------> row ------> far window ---------> slot ------> due run
                             ^                   ^             |
                             +-------------------+-------------+  re-armed for its next fire time

A fire time before the edge of the far windows goes straight to its slot. A disabled job, or one
without a further fire time, is unarmed. A removed job is a dead row until ``renumber``. A polled job is not in the
wheel: ``PolledJobs`` asks its schedule.

Never. No I/O and no clock: ``now_ms`` is an argument. The engine never arms relative to now, only to the cursor tick,
never offers a run before its fire time, and never drops a run without an entry in the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Numbers of the engine, filled from ``Settings``, with the same defaults. Times in ms."""

    shards: int = 256
    tick_ms: int = 1_000
    stall_limit_ms: int = 300_000
    backlog_max: int = 1_000_000
    """A gap with more runs than this is settled by misfire policy instead of being replayed."""
    misfire_gap_ms: int = 900_000
    lookback_ms: int = 5_000
    starting_deadline_ms: int | None = None
    """``beat_cron_starting_deadline``: the greatest age of a cron's newest missed run that ``latest`` still offers."""
    all_max: int = 1_000
    """After one gap, ``misfire=all`` offers at most this many runs of a job: the newest."""
    max_jobs: int = 50_000_000
    window_ms: int = 900_000
    """Length of a far window, a multiple of the tick. A slot has an overhead of 100 bytes, so few ticks are near."""
    runs_per_advance: int = 2_000_000
    """``advance`` returns after the tick in which this many runs are reached."""


class ApplyReport(NamedTuple):
    """How many jobs a batch of changes inserted, updated and deleted."""

    inserted: int
    updated: int
    deleted: int
    refused_ids: Sequence[int]
    """New jobs beyond ``max_jobs``."""


class EngineStats(NamedTuple):
    """Counts for status and metrics."""

    jobs: int
    cursor_ms: int
    refused: int
    """Jobs refused because of ``max_jobs`` since the start."""
    step_number: int
    payload_bytes: int
