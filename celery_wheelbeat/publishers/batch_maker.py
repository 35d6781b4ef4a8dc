"""Makes finished messages out of envelopes, the jobs' own pieces and the runs' stamps, and batches out of messages."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from celery_wheelbeat.envelopes import Hole, delivery_tags, nonces
from celery_wheelbeat.publishers.batches import Batch, Parcel
from celery_wheelbeat.publishers.envelope import Stamps
from celery_wheelbeat.publishers.observers import new_traces

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from celery_wheelbeat.bodies import Columns
    from celery_wheelbeat.envelopes import Messages
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


class Made(NamedTuple):
    """The messages of one load."""

    key: bytes
    """Of the parcels that they are sent in."""
    messages: Messages
    nonces: Octets
    """32 hex digits each."""


class Draft:
    """A batch that is being put together."""

    def __init__(self) -> None:
        self.parcels: list[Parcel] = []
        self._nonces: list[bytes] = []

    def add(self, made: Made, where: slice) -> None:
        """Append some (at least one) of the messages that were made."""
        self.parcels.append(Parcel(made.key, where.stop - where.start, made.messages.part(where)))
        self._nonces.append(made.nonces[where].tobytes())

    def batch(self, token: int, epoch: int) -> Batch:
        """Return what was put together."""
        return Batch(token, self.parcels, b"".join(self._nonces), epoch)


def make(load: Load, now: datetime) -> Made:
    """Return the messages of ``load``, each with a nonce and a delivery tag that never existed before."""
    envelope, size = load.envelope, len(load.ids)
    entropy = os.urandom(16 * size)  # nonce and tag of a message may be the same number
    fresh = nonces(entropy)
    tags = delivery_tags(entropy) if Hole.TAG in envelope.skeleton.holes else b""
    traces = None
    if envelope.observed:
        traces = new_traces(load.ids, fresh, os.urandom(4 * size), now.timestamp())
    stamps = Stamps(load.ids, load.fire_ms, fresh, tags, now, traces)
    return Made(envelope.key, envelope.render(load.columns.by_hole(), stamps), fresh)


def make_batch(token: int, epoch: int, loads: Sequence[Load], now: datetime) -> Batch:
    """Return the batch of ``loads``."""
    draft = Draft()
    for load in loads:
        draft.add(make(load, now), slice(0, len(load.ids)))
    return draft.batch(token, epoch)
