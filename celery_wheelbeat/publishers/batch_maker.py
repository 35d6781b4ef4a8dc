"""Makes a batch of finished messages out of envelopes, the jobs' own pieces and the runs' stamps."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from celery_wheelbeat.envelopes import Hole, delivery_tags, nonces
from celery_wheelbeat.publishers.batches import Batch, Parcel
from celery_wheelbeat.publishers.envelope import Stamps
from celery_wheelbeat.publishers.observers import new_traces
from celery_wheelbeat.runs import texts_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from celery_wheelbeat.bodies import Columns
    from celery_wheelbeat.jobs import Int64s
    from celery_wheelbeat.publishers.envelope import Envelope
    from celery_wheelbeat.runs import Octets


class Load(NamedTuple):
    """Runs whose messages have one envelope."""

    envelope: Envelope
    columns: Columns
    ids: Octets
    """Run ids, 36 octets each."""
    fire_ms: Int64s


def make_batch(token: int, epoch: int, loads: Sequence[Load], now: datetime) -> Batch:
    """Return the batch of ``loads``, each message with a nonce and a delivery tag that never existed before."""
    parcels = []
    every_nonce: list[bytes] = []
    for load in loads:
        size = len(load.ids)
        entropy = os.urandom(16 * size)  # nonce and tag of a message may be the same number
        fresh = nonces(entropy)
        tags = delivery_tags(entropy) if Hole.TAG in load.envelope.skeleton.holes else ()
        traces = None
        if load.envelope.observed:
            traces = new_traces(texts_of(load.ids), texts_of(fresh), os.urandom(4 * size), now.timestamp())
        stamps = Stamps(load.ids, load.fire_ms, fresh, tags, now, traces)
        messages = load.envelope.render(load.columns.by_hole(), stamps)
        parcels.append(Parcel(load.envelope.key, size, messages))
        every_nonce.append(fresh.tobytes())
    return Batch(token, parcels, b"".join(every_nonce), epoch)
