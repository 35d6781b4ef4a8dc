"""The values that the rooms exchange: compiled definitions, changes, due batches.

Invariant: the builder of a batch gives it away; no array is written to after it was handed over.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from celery_wheelbeat.schedules.columns import NOT_CRON, ScheduleColumns
from celery_wheelbeat.schedules.kinds import NEVER_MS, Int64s, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.schedules.kinds import Int64s, Polled, Positions, UInt32s


MISFIRE_SHIFT = 2
OVERLAP_SHIFT = 4


class Misfire(Enum):
    """Policy for fire times that passed while they could not be sent; see ``engine.misfire``."""

    AUTO = 0
    SKIP = 1
    LATEST = 2
    ALL = 3


class Overlap(Enum):
    """Policy for runs of one job that would execute at the same time; enforced by the workers."""

    ALLOW = 0
    SKIP = 1
    QUEUE_ONE = 2


class Flag:
    """Bits of ``DefinitionBatch.flags`` (uint16); plain ints, see ``Kind``."""

    ENABLED: Final = 1
    ONE_OFF: Final = 2
    """Done after its first confirmed run."""
    MISFIRE_LOW: Final = 4
    MISFIRE_HIGH: Final = 8
    OVERLAP_LOW: Final = 16
    OVERLAP_HIGH: Final = 32


def flags_of(*, enabled: bool, one_off: bool, misfire: Misfire, overlap: Overlap = Overlap.ALLOW) -> int:
    """Pack the switches and policies of one job into a value of the ``flags`` column."""
    return (
        (Flag.ENABLED if enabled else 0)
        | (Flag.ONE_OFF if one_off else 0)
        | (misfire.value << MISFIRE_SHIFT)
        | (overlap.value << OVERLAP_SHIFT)
    )


def misfire_of(flags: int) -> Misfire:
    """Unpack the misfire policy from the ``flags`` column."""
    return Misfire((flags >> MISFIRE_SHIFT) & 3)


def overlap_of(flags: int) -> Overlap:
    """Unpack the overlap policy from the ``flags`` column."""
    return Overlap((flags >> OVERLAP_SHIFT) & 3)


class Route(NamedTuple):
    """How the messages of a job are sent. Interned: many jobs share few routes."""

    task: str
    options: str = "{}"
    """Options of ``apply_async`` as canonical JSON text (sorted keys)."""
    expires_next: bool = False
    """Each message expires at the job's following fire time."""
    destination: str = "broker"


@dataclass(frozen=True, slots=True)
class DefinitionBatch:
    """``n`` compiled definitions as columns of length ``n``."""

    ids: Int64s
    """Job ids, ascending, unique: monitors ≥ 0 (primary key), entries < 0."""
    kind: NDArray[np.uint8]
    interval_ms: Int64s
    """Interval of INTERVAL jobs, else 0."""
    anchor_ms: Int64s
    """INTERVAL: phase anchor (0 = Unix epoch). ONCE: the instant itself. Else 0."""
    offset_ms: Int64s
    """Resolved jitter, ≥ 0, added to every fire time of the base schedule."""
    cron_index: NDArray[np.int32]
    """Index into the ``CronTable`` of CRON jobs, else -1."""
    flags: NDArray[np.uint16]
    route_index: UInt32s
    start_ms: Int64s
    """First allowed fire time, inclusive; ALWAYS_MS = none."""
    end_ms: Int64s
    """End of the schedule, exclusive; NEVER_MS = none."""
    incident_interval_ms: Int64s
    """Interval that replaces the base schedule up to ``incident_until_ms``; 0 = no incident."""
    incident_until_ms: Int64s
    effective_from_ms: Int64s
    """Fire times before this do not belong to the definition; a gap never begins earlier."""
    payload: bytes
    """UTF-8 JSON texts ``[args, kwargs]``, concatenated; empty for entries."""
    lengths: UInt32s
    """Bytes of ``payload`` per job."""
    names: bytes
    """UTF-8 plain names, concatenated."""
    name_lengths: NDArray[np.uint16]
    polled: Mapping[int, Polled] = field(default_factory=dict)
    """Job id → schedule, for POLLED jobs."""
    spread: NDArray[np.bool_] | None = None
    """Mask of INTERVAL jobs without an anchor that are known to have the default jitter of their interval; None:
    unknown."""
    routes: Sequence[Route] | None = None
    """The routes that ``route_index`` refers to; None: those of the engine's ``RouteTable``."""

    def __len__(self) -> int:
        return len(self.ids)

    def route_at(self, position: int) -> Route:
        """Return the route of the definition at ``position``; the batch must have its own routes."""
        return (self.routes or ())[int(self.route_index[position])]

    def take(self, positions: NDArray[np.integer]) -> DefinitionBatch:
        """Return the definitions at ``positions`` (ascending) as a batch of their own."""
        columns: dict[str, Any] = {
            item.name: getattr(self, item.name)[positions]
            for item in fields(self)
            if item.name not in ("payload", "names", "polled", "spread", "routes")
        }
        columns["spread"] = None if self.spread is None else self.spread[positions]
        columns["payload"] = _pieces(self.payload, self.lengths, positions)
        columns["names"] = _pieces(self.names, self.name_lengths, positions)
        return DefinitionBatch(**columns, polled=self.polled, routes=self.routes)

    @classmethod
    def merged(cls, batches: Sequence[DefinitionBatch]) -> DefinitionBatch:
        """Return the definitions of all ``batches``, whose ids are distinct, ascending by id."""
        columns: dict[str, Any] = {}
        for item in fields(cls):
            parts = [getattr(batch, item.name) for batch in batches]
            if item.name in ("payload", "names"):
                columns[item.name] = b"".join(parts)
            elif item.name == "polled":
                columns[item.name] = {job_id: schedule for part in parts for job_id, schedule in part.items()}
            elif item.name == "routes":
                columns[item.name] = _joined_routes(batches)
            elif item.name == "route_index":
                columns[item.name] = _concatenated(_shifted_routes(batches))
            elif item.name == "spread":
                known = [np.zeros(len(batch), np.bool_) if batch.spread is None else batch.spread for batch in batches]
                columns[item.name] = np.concatenate(known)
            else:
                columns[item.name] = _concatenated(parts)
        together = cls(**columns)
        if (together.ids[1:] > together.ids[:-1]).all():
            return together
        return together.take(np.argsort(together.ids, kind="stable"))

    def schedules(self) -> ScheduleColumns:
        """Return the schedules as columns; polled jobs never fire in them."""
        phase_ms, interval_ms, cron_index = self.anchor_ms + self.offset_ms, self.interval_ms, self.cron_index
        if (self.kind != Kind.INTERVAL).any():
            interval_ms = np.where(self.kind == Kind.INTERVAL, interval_ms, 0)
            phase_ms = np.where(self.kind == Kind.POLLED, NEVER_MS, phase_ms)
            cron_index = np.where(self.kind == Kind.CRON, cron_index, NOT_CRON).astype(np.int32)
        return ScheduleColumns(
            interval_ms,
            phase_ms,
            cron_index,
            self.offset_ms,
            self.start_ms,
            self.end_ms,
            self.incident_interval_ms,
            self.incident_until_ms,
        )


def _joined_routes(batches: Sequence[DefinitionBatch]) -> Sequence[Route] | None:
    first = batches[0].routes
    if all(batch.routes is first for batch in batches):
        return first
    return [route for batch in batches for route in batch.routes or ()]


def _shifted_routes(batches: Sequence[DefinitionBatch]) -> list[UInt32s]:
    """Return the route indices of each batch, referring to ``_joined_routes``."""
    if all(batch.routes is batches[0].routes for batch in batches):
        return [batch.route_index for batch in batches]
    shifted, before = [], 0
    for batch in batches:
        shifted.append(batch.route_index + np.uint32(before))
        before += len(batch.routes or ())
    return shifted


def _concatenated(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Concatenate columns; if all broadcast the same value, so does the result."""
    first = parts[0]
    if all(part.strides == (0,) and len(part) and part[0] == first[0] for part in parts):
        return np.broadcast_to(first[0], sum(map(len, parts)))
    return np.concatenate(parts)


def _pieces(text: bytes, lengths: NDArray[np.integer], positions: NDArray[np.integer]) -> bytes:
    ends = np.cumsum(lengths, dtype=np.int64)
    starts = ends - lengths
    return b"".join(
        text[start:end] for start, end in zip(starts[positions].tolist(), ends[positions].tolist(), strict=True)
    )


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Changed jobs in their current state. The last write per id wins; applying a batch twice changes nothing."""

    upserts: DefinitionBatch
    deleted_ids: Int64s
    cursor: Any = None
    """Opaque position in the change log after this batch; None for sources without a change log."""

    @property
    def ids(self) -> Int64s:
        """Ids of all changed jobs, deleted ones included."""
        return np.concatenate((self.upserts.ids, self.deleted_ids))


class Offer(Enum):
    """Why a run is offered to the publisher."""

    DUE = "due"
    """The wheel emptied its slot."""
    MISFIRE = "misfire"
    """It was missed and its policy offers it; counted as expected, like DUE."""
    REOFFERED = "reoffered"
    """It may have been sent before the restart; not part of the accounting sum."""


@dataclass(frozen=True, slots=True)
class DueBatch:
    """Due runs of one shard, ascending by fire time."""

    shard: int
    rows: UInt32s
    """Rows in the shard's table; valid until the next ``apply`` or ``sweep``."""
    ids: Int64s
    fire_ms: Int64s
    route_index: UInt32s
    offer: Offer = Offer.DUE
    step: int = 0
    """n or -n: these fire times are lived again after the n-th backward step of the clock. n: intervals, whose run ids
    end in ``~n``; -n: other jobs, whose run ids stay the same."""

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, where: Positions) -> DueBatch:
        """Return the runs at ``where`` as a batch of their own."""
        columns = (self.rows[where], self.ids[where], self.fire_ms[where], self.route_index[where])
        return DueBatch(self.shard, *columns, self.offer, self.step)


class Finished(NamedTuple):
    """A single-run monitor that is done; instants in ms."""

    at_ms: int
    """Instant at which its run was confirmed."""
    armed_ms: int
    """``effective_from`` of the definition that was run; a newer definition is not done."""


class EntryMark(NamedTuple):
    """``effective_from`` of an entry of ``beat_schedule``, kept with the mark because entries have no row."""

    definition_hash: str
    effective_from_ms: int
