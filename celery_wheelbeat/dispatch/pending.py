"""Pending runs as (job, fire time, tag) columns of 20 bytes per run, and leases of them.

Nothing here counts runs as sent or skipped; the backlog does the accounting.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.schedules.kinds import Int64s

    Token = int
    """Number of a lease."""

REOFFERED = 1
OUTDATED = 2
"""The job was redefined after the run was taken: its outcome says nothing about the current definition."""
STEP_SHIFT = 2


class PendingRun(NamedTuple):
    """One pending run."""

    job_id: int
    fire_ms: int
    tag: int = 0
    size_bytes: int = 0
    """Bytes of its arguments if it is in flight with a lease of its own."""

    @property
    def reoffered(self) -> bool:
        """Whether it may have been sent before the restart; reoffered runs are outside the accounting sum."""
        return bool(self.tag & REOFFERED)

    @property
    def outdated(self) -> bool:
        """Whether its job was redefined after it was taken."""
        return bool(self.tag & OUTDATED)

    @property
    def step(self) -> int:
        """See ``DueBatch.step``; 0 = the fire time is lived for the first time."""
        return self.tag >> STEP_SHIFT


class PendingRuns(NamedTuple):
    """Pairs as columns of equal length."""

    ids: Int64s
    fire_ms: Int64s
    tag: NDArray[np.int32]

    @classmethod
    def of(cls, pairs: Sequence[PendingRun]) -> PendingRuns:
        """Turn single pairs into columns."""
        if not pairs:
            return joined(())
        ids, fires_ms, tags, _ = zip(*pairs, strict=True)
        return cls(np.array(ids, np.int64), np.array(fires_ms, np.int64), np.array(tags, np.int32))

    def singly(self) -> Iterator[PendingRun]:
        """Yield pair after pair."""
        return map(PendingRun, self.ids.tolist(), self.fire_ms.tolist(), self.tag.tolist())

    def at(self, where: NDArray[np.bool_] | NDArray[np.intp] | slice) -> PendingRuns:
        """Return the pairs at ``where``."""
        return PendingRuns(self.ids[where], self.fire_ms[where], self.tag[where])

    def outdated(self, where: NDArray[np.bool_]) -> PendingRuns:
        """Return all pairs, those at ``where`` marked as outdated."""
        return self._replace(tag=np.where(where, self.tag | OUTDATED, self.tag))

    def current(self) -> PendingRuns:
        """Return all pairs, none of them marked as outdated."""
        return self._replace(tag=self.tag & ~OUTDATED) if (self.tag & OUTDATED).any() else self

    def by_fire_time(self) -> PendingRuns:
        """Return all pairs, sorted by fire time."""
        if np.all(self.fire_ms[1:] >= self.fire_ms[:-1]):
            return self
        return self.at(np.argsort(self.fire_ms, kind="stable"))

    def accounted(self) -> int:
        """Return the number of pairs in the accounting sum: all but the reoffered ones."""
        return len(self.ids) - int(np.count_nonzero(self.tag & REOFFERED))


def joined(chunks: Iterable[PendingRuns]) -> PendingRuns:
    """Return ``chunks`` concatenated; a single one that is not empty is not copied."""
    chunks = [chunk for chunk in chunks if len(chunk.ids)]
    if len(chunks) == 1:
        return chunks[0]
    if not chunks:
        return PendingRuns(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32))
    return PendingRuns(*(np.concatenate(column) for column in zip(*chunks, strict=True)))


class RunLease(NamedTuple):
    """Runs that are in flight together."""

    token: int
    runs: PendingRuns


class RunLeases:
    """The runs in flight: columns of runs, each with one token. A lease can be split; each part has its own token."""

    def __init__(self) -> None:
        self.strays = 0
        """Number of tokens whose lease had ended before; must be 0."""
        self.size_bytes = 0
        """Sum of the ``size_bytes`` of the runs leased singly."""
        self.alone: deque[PendingRuns] = deque()
        """Runs that have to be sent with nothing else on the way; see ``set_alone``."""
        self._leases: dict[Token, RunLease | PendingRun] = {}
        """A run for ``split_singly``: columns of one row would take ten times the memory and time."""
        self._parked: dict[Hashable, list[Token]] = {}
        """What runs wait for → tokens of their leases."""
        self._next_token = 0

    def __len__(self) -> int:
        """Return the number of runs."""
        leased = sum(1 if isinstance(lease, PendingRun) else len(lease.runs.ids) for lease in self._leases.values())
        return leased + sum(len(runs.ids) for runs in self.alone)

    def fires_ms(self) -> Int64s:
        """Return the fire times of all runs, in no order."""
        singles = [lease.fire_ms for lease in self._leases.values() if isinstance(lease, PendingRun)]
        columns = [lease.runs.fire_ms for lease in self._leases.values() if isinstance(lease, RunLease)]
        return np.concatenate([np.array(singles, np.int64), *columns, *(runs.fire_ms for runs in self.alone)])

    def runs(self) -> Iterator[PendingRuns]:
        """Yield all runs, in no order."""
        yield PendingRuns.of([lease for lease in self._leases.values() if isinstance(lease, PendingRun)])
        yield from (lease.runs for lease in self._leases.values() if isinstance(lease, RunLease))
        yield from self.alone

    def take_out_alone(self, where: NDArray[np.bool_]) -> PendingRuns:
        """Remove and return the runs of ``alone`` that lie in the shards at ``where``."""
        every = joined(self.alone)
        mine = where[every.ids & (len(where) - 1)]
        stay = [runs.at(~where[runs.ids & (len(where) - 1)]) for runs in self.alone]
        self.alone = deque(runs for runs in stay if len(runs.ids))
        return every.at(mine)

    def begin(self, runs: PendingRuns) -> RunLease:
        """Return a new lease."""
        lease = self._leases[self._next_token] = RunLease(self._next_token, runs)
        self._next_token += 1
        return lease

    def end(self, tokens: Iterable[int]) -> PendingRuns:
        """End leases and return their runs."""
        chunks: list[PendingRuns] = []
        singles: list[PendingRun] = []
        for token in tokens:
            lease = self._leases.pop(token, None)
            if lease is None:
                self.strays += 1
                continue
            if isinstance(lease, PendingRun):
                self.size_bytes -= lease.size_bytes
                singles.append(lease)
            else:
                chunks.append(lease.runs)
        return joined([*chunks, PendingRuns.of(singles)] if singles else chunks)

    def clear(self) -> None:
        """End all leases."""
        self._leases.clear()
        self._parked.clear()
        self.alone.clear()
        self.size_bytes = 0

    def set_alone(self, token: int) -> None:
        """End a lease; its runs are leased again in two halves, by ``begin_alone``."""
        runs = self.end([token]).current()
        half = (len(runs.ids) + 1) // 2
        self.alone += [part for part in (runs.at(slice(half)), runs.at(slice(half, None))) if len(part.ids)]

    def begin_alone(self) -> RunLease:
        """Lease the next runs of ``alone``, of which there must be some."""
        return self.begin(self.alone.popleft())

    def park(self, token: int, cause: Hashable) -> None:
        """Let the runs of a lease wait for ``cause``; ``unpark`` returns the token."""
        self._parked.setdefault(cause, []).append(token)

    def is_parked(self, cause: Hashable) -> bool:
        """Return whether any runs wait for ``cause``."""
        return cause in self._parked

    def unpark(self, cause: Hashable) -> list[int]:
        """Return the leases that waited for ``cause``."""
        return self._parked.pop(cause, [])

    def unpark_all(self) -> list[int]:
        """Return all leases that waited."""
        parked, self._parked = self._parked, {}
        return [token for tokens in parked.values() for token in tokens]

    def split(self, token: int, *groups: Sequence[int] | NDArray[np.intp]) -> list[RunLease]:
        """Lease the runs at each group of positions apart, in that order; the rest of the lease keeps its token."""
        lease = RunLease(token, self.runs_of(token))
        rest = np.ones(len(lease.runs.ids), np.bool_)
        parts = []
        for positions in groups:
            where = np.asarray(positions, np.intp)
            rest[where] = False
            parts.append(self.begin(lease.runs.at(where)))
        if rest.any():
            self._leases[token] = lease._replace(runs=lease.runs.at(rest))
        else:
            del self._leases[token]
        return parts

    def split_singly(self, token: int, sizes: Sequence[int]) -> dict[int, PendingRun]:
        """Split a lease into leases of one run each, of ``sizes`` bytes; returns the runs by token."""
        runs = self.end([token])
        columns = (runs.ids.tolist(), runs.fire_ms.tolist(), runs.tag.tolist(), sizes)
        singles = dict(enumerate(map(PendingRun, *columns), self._next_token))
        self._next_token += len(singles)
        self.size_bytes += sum(sizes)
        self._leases.update(singles)
        return singles

    def singles(self) -> Iterator[tuple[int, PendingRun]]:
        """Yield token and run of each lease of ``split_singly``, in the order of the tokens."""
        return ((token, lease) for token, lease in self._leases.items() if isinstance(lease, PendingRun))

    def count_of(self, token: int) -> int:
        """Return the number of runs of a lease; 0 if it has ended."""
        lease = self._leases.get(token)
        return 0 if lease is None else 1 if isinstance(lease, PendingRun) else len(lease.runs.ids)

    def runs_of(self, token: int) -> PendingRuns:
        """Return the runs of a lease; none if it has ended."""
        lease = self._leases.get(token)
        if isinstance(lease, PendingRun):
            return PendingRuns.of([lease])
        return joined(()) if lease is None else lease.runs

    def outdate(self, ids: Int64s) -> None:
        """Mark the leased runs of redefined jobs as outdated."""
        columns = [lease for lease in self._leases.values() if isinstance(lease, RunLease)]
        if columns:
            found = np.isin(np.concatenate([lease.runs.ids for lease in columns]), ids)
            ends = np.cumsum([len(lease.runs.ids) for lease in columns])
            for lease, where in zip(columns, np.split(found, ends[:-1]), strict=True):
                if where.any():
                    self._leases[lease.token] = lease._replace(runs=lease.runs.outdated(where))
        if len(columns) < len(self._leases):
            changed = set(ids.tolist())
            for token, single in self._leases.items():
                if isinstance(single, PendingRun) and single.job_id in changed:
                    self._leases[token] = single._replace(tag=single.tag | OUTDATED)
