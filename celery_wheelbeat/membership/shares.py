"""Shares: which beat sends which shard. A pure function of the list of beats, so that no beat has to ask another.

Bounded rendezvous: all pairs of beat and shard, in descending order of their score, are gone through once. A shard goes
to its first beat that has room. The shares of N beats differ by at most one shard, and if a beat leaves, few shards
move beside its own. ``tests/data/share_vectors.json`` freezes the result: releases that differ would send twice.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class Candidate(NamedTuple):
    """A live beat, as far as it matters to the assignment."""

    order: int
    """Seniority; the smallest is the most senior."""
    beat_id: str
    ready: bool
    able: bool
    """Whether its connection to the broker is up."""
    offset_ms: int
    """Its clock minus the clock of the store."""
    damped: bool
    """Whether it was taken over while alive, a short time ago."""
    active: int
    """Its ``wheelbeat_active``."""
    shards: int
    """Its ``wheelbeat_shards``."""


UNFIT_MS = 5_000
"""A beat whose clock differs by more gets no share while another beat's clock is right."""
FIT_MS = 1_000
"""A clock that differs by no more is right."""


def senders(candidates: Collection[Candidate]) -> list[str]:
    """Return the ids of the beats that divide the shards, the most senior first; empty if no beat can send.

    The most senior ready beat decides how many may send and which number of shards is right, so that beats with other
    settings agree with it.
    """
    ready = sorted(candidate for candidate in candidates if candidate.ready)
    if not ready:
        return []
    active, shards = ready[0].active, ready[0].shards
    counting = [candidate for candidate in ready if candidate.able and candidate.shards == shards]
    if any(abs(candidate.offset_ms) <= FIT_MS for candidate in counting):
        counting = [candidate for candidate in counting if abs(candidate.offset_ms) <= UNFIT_MS]
    counting = [candidate for candidate in counting if not candidate.damped] or counting
    return [candidate.beat_id for candidate in counting[:active]]


def assign(beat_ids: Collection[str], shards: int) -> Mapping[int, str]:
    """Return shard → id of the beat that sends it; empty without beats. The order of ``beat_ids`` does not matter."""
    return _assign(tuple(sorted(set(beat_ids))), shards)


@lru_cache(maxsize=64)
def _assign(beat_ids: tuple[str, ...], shards: int) -> Mapping[int, str]:
    if not beat_ids:
        return {}
    room, larger = divmod(shards, len(beat_ids))
    taken = dict.fromkeys(beat_ids, 0)
    owners: dict[int, str] = {}
    pairs = [(score, beat_id, shard) for beat_id in beat_ids for shard, score in enumerate(_scores(beat_id, shards))]
    for _, beat_id, shard in sorted(pairs, reverse=True):
        if shard in owners or taken[beat_id] > room or (taken[beat_id] == room and not larger):
            continue
        larger -= taken[beat_id] == room
        taken[beat_id] += 1
        owners[shard] = beat_id
    return owners


@lru_cache(maxsize=256)
def _scores(beat_id: str, shards: int) -> tuple[int, ...]:
    keys = (f"{beat_id}:{shard}".encode(errors="surrogatepass") for shard in range(shards))
    return tuple(int.from_bytes(blake2b(key, digest_size=8).digest()) for key in keys)
