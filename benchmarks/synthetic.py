"""Synthetic definitions for engine benchmarks: ascending ids, distinct texts, given intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from celery_wheelbeat.engine import EngineConfig
from celery_wheelbeat.engine.engine import Engine
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.jobs.definitions import DefinitionBatch, Flag, Route
from celery_wheelbeat.jobs.identity import interval_offset_ms
from celery_wheelbeat.schedules.cron import CronTable
from celery_wheelbeat.schedules.kinds import ALWAYS_MS, NEVER_MS, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

NOW_MS = 1_900_000_000_000
MINUTE_MS = 60_000
MIXED_MS = (60_000, 60_000, 300_000, 900_000, 3_600_000, 86_400_000, 86_400_000)
BATCH = 100_000
PAYLOAD = b'[[], {"url": "https://customer-000000000.example.com/health/live?probe=0123456789", "timeout_s": 10}]'
NAME = b"check 000000000"


def numbered(template: bytes, ids: np.ndarray) -> bytes:
    """Return the template once per id, its run of nine zeros replaced by the id."""
    rows = np.tile(np.frombuffer(template, np.uint8), (len(ids), 1))
    at = template.index(b"000000000")
    for digit in range(9):
        rows[:, at + 8 - digit] = ord("0") + ids // 10**digit % 10
    return rows.tobytes()


def batch_of(ids: np.ndarray, interval_ms: np.ndarray) -> DefinitionBatch:
    """Return enabled interval jobs with a payload of 100 bytes and a name of 15."""
    count = len(ids)
    zeros = np.zeros(count, np.int64)
    return DefinitionBatch(
        ids=ids,
        kind=np.full(count, Kind.INTERVAL, np.uint8),
        interval_ms=interval_ms,
        anchor_ms=zeros,
        offset_ms=interval_offset_ms(ids, interval_ms),
        cron_index=np.full(count, -1, np.int32),
        flags=np.full(count, Flag.ENABLED, np.uint16),
        route_index=np.zeros(count, np.uint32),
        start_ms=np.full(count, ALWAYS_MS),
        end_ms=np.full(count, NEVER_MS),
        incident_interval_ms=zeros,
        incident_until_ms=zeros,
        effective_from_ms=zeros,
        payload=numbered(PAYLOAD, ids),
        lengths=np.full(count, len(PAYLOAD), np.uint32),
        names=numbered(NAME, ids),
        name_lengths=np.full(count, len(NAME), np.uint16),
    )


def engine_with(jobs: int, intervals_ms: Sequence[int], **config: int) -> Engine:
    """Return an engine that has loaded ``jobs``, with intervals drawn evenly from ``intervals_ms``."""
    engine = Engine(EngineConfig(max_jobs=1_000_000_000, **config), CronTable(), Ledger())
    engine.routes.intern(Route("bench.check"))
    engine.start(NOW_MS)
    engine.expect(jobs)
    rng, choice = np.random.default_rng(1), np.array(intervals_ms, np.int64)
    for first in range(0, jobs, BATCH):
        ids = np.arange(first, min(jobs, first + BATCH), dtype=np.int64)
        engine.load(batch_of(ids, choice[rng.integers(0, len(choice), len(ids))]), {})
    return engine
