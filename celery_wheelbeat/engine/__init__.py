"""The numbers that the engine works with. Values only; the scheduler fills them from the settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Numbers that the engine needs; times in ms. Defaults are those of ``Settings``."""

    shards: int = 256
    tick_ms: int = 1_000
    stall_limit_ms: int = 300_000
    backlog_max: int = 1_000_000
    """A gap that holds more runs than this is treated by misfire policy instead of being replayed."""
    misfire_gap_ms: int = 900_000
    lookback_ms: int = 5_000
    starting_deadline_ms: int | None = None
    """``beat_cron_starting_deadline``: how old a cron's newest missed run may be under ``latest``."""
    all_max: int = 1_000
    """``misfire=all`` offers at most this many runs of one job after one gap, the newest."""
    max_jobs: int = 50_000_000
    window_ms: int = 900_000
    """Length of a far window, a multiple of the tick: a slot costs a hundred bytes beside its rows, so few are near."""
    runs_per_advance: int = 2_000_000
    """``advance`` returns after the tick in which it has collected this many runs."""
