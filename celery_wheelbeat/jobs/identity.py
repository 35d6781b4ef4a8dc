"""Identity of runs: which id a run has, which shard owns a job, where in its period a job sits.

Everything is a pure function of name, key and fire time, the same on every machine and in every version: the values
are frozen by test vectors, because a change would move people's checks and break the recognition of copies.
"""

from __future__ import annotations

import uuid
from typing import overload

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]

_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_MASK = 2**64 - 1
_DEFAULT_JITTER = -1
"""In arrays of jitter overrides: the default of the interval."""


def fnv1a64(data: bytes) -> int:
    """Return the 64-bit FNV-1a hash of ``data`` (Fowler, Noll, Vo; RFC 9923)."""
    value = _FNV_OFFSET
    for byte in data:
        value = (value ^ byte) * _FNV_PRIME & _MASK
    return value


def id_hashes(ids: Int64s) -> UInt64s:
    """Return FNV-1a 64 of each id as eight little-endian two's-complement bytes."""
    words = np.asarray(ids, dtype=np.int64).view(np.uint64)
    values = np.full(words.shape, _FNV_OFFSET, dtype=np.uint64)
    octet = np.empty_like(values)
    octets = -(-int(words.max(initial=0)).bit_length() // 8)
    for place in range(octets):
        np.right_shift(words, np.uint64(8 * place), out=octet)
        octet &= np.uint64(0xFF)
        values ^= octet
        values *= np.uint64(_FNV_PRIME)
    values *= np.uint64(pow(_FNV_PRIME, 8 - octets, 1 << 64))  # the other octets are 0 and only multiply
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
    """Return where in its interval each job sits, in ms: whole seconds, the same for ever.

    ``jitter_s``: None (in arrays -1) spreads jobs over the whole interval, which is 0 for intervals under a second;
    0 = exactly on the grid; n = within n seconds. Whoever lets ``start_at`` name the phase passes 0.
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
    """Return how long after its cron slot each job fires, in ms: whole seconds below ``window_s``; 0 = on the slot."""
    if isinstance(ids, int | np.integer):
        return int(cron_offset_ms(np.array([ids], dtype=np.int64), window_s)[0])
    return _offset_ms(ids, np.asarray(window_s, dtype=np.int64))


def _offset_ms(ids: Int64s, window_s: Int64s) -> Int64s:
    offsets = id_hashes(ids)
    offsets %= np.maximum(window_s, 1).astype(np.uint64)
    offsets *= np.uint64(1000)
    return offsets.view(np.int64)


def run_id(key: str, fire_ms: int, namespace: str = "celery", suffix: str = "") -> str:
    """Return the task id of the run of job ``key`` (``monitor:42``) at ``fire_ms``; anyone can recompute it.

    ``suffix`` tells runs of one fire time apart: ``#2`` the second message of one run, ``~1`` re-lived after a step
    of the clock, ``!{uuid}`` run by hand.
    """
    return str(uuid.uuid5(_namespace_uuid(namespace), f"{key}@{fire_ms}{suffix}"))


def _namespace_uuid(namespace: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_URL, f"celery-wheelbeat:{namespace}")
