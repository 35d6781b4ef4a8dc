"""Identity: the id of a run, the shard of a job, the jitter of a job within its period.

All are pure functions of name, job id, key and fire time, the same on every machine and in every version. Test vectors
freeze the values: a change would move the checks of users and break the recognition of copies.
"""

from __future__ import annotations

import uuid
from typing import overload

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]

LATER_IDS_FROM = 2**63 - 2**48
"""Job ids from here on are one-off runs (``later``); monitors have smaller ones, entries negative ones."""

_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_MASK = 2**64 - 1
_DEFAULT_JITTER = -1
"""In arrays of ``jitter_s``: use the default of the interval."""


def fnv1a64(data: bytes) -> int:
    """Return the 64-bit FNV-1a hash of ``data`` (Fowler, Noll, Vo; RFC 9923)."""
    value = _FNV_OFFSET
    for byte in data:
        value = (value ^ byte) * _FNV_PRIME & _MASK
    return value


def id_hashes(ids: Int64s) -> UInt64s:
    """Return the FNV-1a 64 hash of each id, encoded as eight little-endian two's-complement bytes."""
    words = np.asarray(ids, dtype=np.int64).view(np.uint64)
    values = np.full(words.shape, _FNV_OFFSET, dtype=np.uint64)
    octet = np.empty_like(values)
    octets = -(-int(words.max(initial=0)).bit_length() // 8)
    for place in range(octets):
        np.right_shift(words, np.uint64(8 * place), out=octet)
        octet &= np.uint64(0xFF)
        values ^= octet
        values *= np.uint64(_FNV_PRIME)
    values *= np.uint64(pow(_FNV_PRIME, 8 - octets, 1 << 64))  # the remaining octets are 0: they only multiply
    return values


def entry_id(name: str) -> int:
    """Return the job id of a ``beat_schedule`` entry: FNV-1a 64 of the UTF-8 name, sign bit set, as int64 (< 0)."""
    return (fnv1a64(name.encode()) | 1 << 63) - (1 << 64)


def shard_of(job_id: int, shards: int) -> int:
    """Return the shard that owns the job; ``shards`` is a power of two."""
    return job_id & (shards - 1)


@overload
def interval_offset_ms(ids: int, interval_ms: int, jitter_s: int | None = None) -> int: ...
@overload
def interval_offset_ms(ids: Int64s, interval_ms: Int64s | int, jitter_s: Int64s | int | None = None) -> Int64s: ...
def interval_offset_ms(
    ids: Int64s | int, interval_ms: Int64s | int, jitter_s: Int64s | int | None = None
) -> Int64s | int:
    """Return the permanent offset of each job within its interval, in ms: whole seconds.

    ``jitter_s``: None (-1 in arrays) spreads jobs over the whole interval, and gives 0 for intervals below a second;
    0 = exactly on the grid; n = within n seconds. Pass 0 if ``start_at`` fixes the phase.
    """
    if isinstance(ids, int | np.integer):
        return int(interval_offset_ms(np.array([ids], dtype=np.int64), interval_ms, jitter_s)[0])
    whole_s = np.asarray(interval_ms, dtype=np.int64) // 1000
    override_s = np.asarray(_DEFAULT_JITTER if jitter_s is None else jitter_s, dtype=np.int64)
    return _offset_ms(ids, np.where(override_s < 0, whole_s, override_s))


@overload
def cron_offset_ms(ids: int, window_s: int) -> int: ...
@overload
def cron_offset_ms(ids: Int64s, window_s: Int64s | int) -> Int64s: ...
def cron_offset_ms(ids: Int64s | int, window_s: Int64s | int) -> Int64s | int:
    """Return the delay of each job after its cron slot, in ms: whole seconds below ``window_s``, 0 for window 0."""
    if isinstance(ids, int | np.integer):
        return int(cron_offset_ms(np.array([ids], dtype=np.int64), window_s)[0])
    return _offset_ms(ids, np.asarray(window_s, dtype=np.int64))


def _offset_ms(ids: Int64s, window_s: Int64s) -> Int64s:
    offsets = id_hashes(ids)
    offsets %= np.maximum(window_s, 1).astype(np.uint64)
    offsets *= np.uint64(1000)
    return offsets.view(np.int64)


def run_id(key: str, fire_ms: int, namespace: str = "celery", suffix: str = "") -> str:
    """Return the task id of the run of job ``key`` (``monitor:42``) at ``fire_ms``: a uuid5 anyone can recompute.

    ``suffix`` distinguishes runs of one fire time: ``#2`` is the second message of one run, ``~1`` a run re-lived after
    the first backward step of the clock, ``!{uuid}`` a manual run.
    """
    return str(uuid.uuid5(_namespace_uuid(namespace), f"{key}@{fire_ms}{suffix}"))


def _namespace_uuid(namespace: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_URL, f"celery-wheelbeat:{namespace}")
