"""The backlog of a lane: runs that are due and not settled, as (job, fire time) pairs.

Every offered run is *pending* until it leaves in exactly one way: confirmed, or skipped with a reason. Pairs, not
bytes: 20 B each in arrays, always bounded by ``limit``. The backlog never renders, sends or waits.

Two queues: *late* holds the runs that waited when the destination last failed, *fresh* holds later runs of other jobs.
Each gets a share of every ``take``, so draining an outage does not delay current runs. The runs of one job are sent in
the order of their fire times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from celery_wheelbeat.dispatch.pending import REOFFERED, STEP_SHIFT, PendingQueue, PendingRun, PendingRuns, joined
from celery_wheelbeat.jobs.definitions import Offer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from celery_wheelbeat.engine.ledger import Ledger
    from celery_wheelbeat.jobs.definitions import DueBatch
    from celery_wheelbeat.schedules.kinds import Int64s

    KeepAll = Callable[[Int64s], NDArray[np.bool_]]
    """Job ids → whether each of them has ``misfire=all``."""


_NOBODY: Int64s = np.empty(0, np.int64)


class Leftover(NamedTuple):
    """The runs that were pending at the end of a process."""

    runs: int
    oldest_fire_ms: int | None
    newest_fire_ms: int | None


class Block(NamedTuple):
    """Pairs that are in flight together; a pair that is not ``open`` has left the block."""

    pairs: PendingRuns
    open: NDArray[np.bool_]


class Backlog:
    """The pending runs of one lane.

    Per tick: ``offer`` due runs, then ``take`` as many as the publisher has room for, or ``squeeze`` while the
    destination is down. ``confirm``, ``give_back`` and ``skip`` settle runs by the token that ``take`` returned.
    """

    def __init__(self, ledger: Ledger, *, limit: int, keep_all: KeepAll) -> None:
        """``keep_all`` is called with the jobs whose older runs are about to be skipped."""
        self.strays = 0
        """Outcomes for runs that were already settled; must be 0."""
        self.left_queue = 0
        """Number of times that a pair left the queues: taken (again after each return) or skipped."""
        self._ledger = ledger
        self.limit = limit
        """Most pairs that may wait."""
        self.keep_all = keep_all
        self._pending = 0
        self._offered: list[PendingRuns] = []
        self._offered_count = 0
        self._late = PendingQueue()
        self._jobs_ahead: Int64s | None = None
        """Sorted ids of jobs in ``_late``; later runs of these jobs go there too. None: recompute from ``_late``."""
        self._late_by_id = False
        """Whether ``_late`` is sorted by job id and has to be sorted by fire time before the next take."""
        self._squeezed = False
        """Whether nothing was queued since the last squeeze."""
        self._fresh = PendingQueue()
        self._in_flight: dict[int, PendingRun] = {}
        self._blocks: dict[int, Block] = {}
        self._next_token = 0

    @property
    def pending(self) -> int:
        """Runs that are neither confirmed nor skipped; a term of the accounting identity."""
        return self._pending

    @property
    def waiting(self) -> int:
        """Pairs that can be taken, reoffered ones included."""
        return self._offered_count + self._late.count + self._fresh.count

    @property
    def in_flight(self) -> int:
        """Pairs that were taken and not settled."""
        return len(self._in_flight) + sum(int(np.count_nonzero(block.open)) for block in self._blocks.values())

    def oldest_fire_ms(self) -> int | None:
        """Return the earliest unsettled fire time, or None; the mark stays before it."""
        return min(self._fires(), default=None)

    def offer(self, due: DueBatch) -> None:
        """Queue the runs of ``due``, which are in the order of their fire times."""
        tag = (REOFFERED if due.offer is Offer.REOFFERED else 0) | due.step << STEP_SHIFT
        self.adopt(PendingRuns(due.ids, due.fire_ms, np.full(len(due), tag, np.int32)))

    def adopt(self, pairs: PendingRuns) -> None:
        """Queue runs, due ones or those that another backlog released."""
        self._offered.append(pairs)
        self._squeezed = False
        self._offered_count += len(pairs.ids)
        self._pending += pairs.accounted()
        if self.waiting > 2 * self.limit:  # a full window that does not move: neither take nor squeeze is called
            self.squeeze()

    def take(self, runs: int) -> dict[int, PendingRun]:
        """Return up to ``runs`` pairs by token, oldest first; half of them come from *fresh* if it has as many.

        A token is valid until ``confirm``, ``give_back``, ``queue_again``, ``skip`` or ``release`` is called with it.
        """
        return self._hand_out(self._take(runs))

    def take_block(self, runs: int) -> tuple[int, PendingRuns]:
        """Return up to ``runs`` pairs as one block with one token, for ``break_up``, ``cut`` and ``confirm_block``."""
        pairs = self._take(runs)
        token = self._next_token
        self._next_token += 1
        self._blocks[token] = Block(pairs, np.ones(len(pairs.ids), np.bool_))
        return token, pairs

    def break_up(self, token: int, positions: Iterable[int]) -> dict[int, PendingRun]:
        """Take pairs out of a block; returns them by new tokens, in the order of ``positions``."""
        block = self._blocks[token]
        where = np.fromiter(positions, np.intp)
        block.open[where] = False
        return self._hand_out(block.pairs.at(where))

    def cut(self, token: int, at: int) -> int:
        """Split a block: the pairs from position ``at`` on become a new block; returns its token."""
        block = self._blocks[token]
        rest = self._next_token
        self._next_token += 1
        self._blocks[token] = Block(block.pairs.at(slice(at)), block.open[:at])
        self._blocks[rest] = Block(block.pairs.at(slice(at, None)), block.open[at:])
        return rest

    def confirm_block(self, token: int) -> PendingRuns:
        """Count the pairs left in a block as confirmed, and return them."""
        block = self._blocks.pop(token)
        pairs = block.pairs.at(block.open)
        accounted = pairs.accounted()
        self._ledger.confirm(accounted)
        self._ledger.reoffer(len(pairs.ids) - accounted)
        self._pending -= accounted
        return pairs

    def release(self, tokens: Iterable[int]) -> PendingRuns:
        """Remove taken runs (at least one) and return them; another backlog must ``adopt`` them."""
        pairs = PendingRuns.of(self._settle(tokens))
        self._pending -= pairs.accounted()
        return pairs

    def _take(self, runs: int) -> PendingRuns:
        self._sort_in()
        if self._late_by_id:
            late = self._late.clear()
            self._late.append(late.at(np.argsort(late.fire_ms, kind="stable")))
            self._late_by_id = False
        runs = max(0, min(runs, self._late.count + self._fresh.count))
        from_late = min(self._late.count, max((runs + 1) // 2, runs - self._fresh.count))
        pairs = joined([*self._late.take(from_late), *self._fresh.take(runs - from_late)])
        self.left_queue += runs
        if not self._late.count:
            self._jobs_ahead = None
        return pairs

    def _hand_out(self, pairs: PendingRuns) -> dict[int, PendingRun]:
        runs = len(pairs.ids)
        tokens = range(self._next_token, self._next_token + runs)
        self._next_token += runs
        taken = dict(zip(tokens, pairs.singly(), strict=True))
        self._in_flight.update(taken)
        return taken

    def confirm(self, tokens: Iterable[int]) -> list[PendingRun]:
        """Count taken runs as confirmed by the broker, and return them."""
        pairs = self._settle(tokens)
        again = sum(pair.tag & REOFFERED for pair in pairs)
        self._ledger.confirm(len(pairs) - again)
        self._ledger.reoffer(again)
        self._pending -= len(pairs) - again
        return pairs

    def skip(self, tokens: Iterable[int], reason: str) -> list[PendingRun]:
        """Count taken runs as skipped for ``reason`` (``error``, ``unroutable``, ``removed`` …), and return them."""
        pairs = self._settle(tokens)
        if pairs:
            self._let_go(PendingRuns.of(pairs), reason)
        return pairs

    def give_back(self, tokens: Iterable[int]) -> None:
        """Put runs that were not or perhaps not sent at the head of *late*; everything that waits becomes late."""
        pairs = sorted(self._settle(tokens), key=lambda pair: pair.fire_ms)
        if not pairs:
            return
        self._sort_in()
        for chunk in self._fresh.take(self._fresh.count):
            self._late.append(chunk)
        self._late.prepend(PendingRuns.of(pairs))
        self._jobs_ahead = None
        self._squeezed = False

    def queue_again(self, tokens: Iterable[int]) -> None:
        """Put refused runs at the end of *late*; no other run waits for them, nor do later runs of their jobs."""
        pairs = sorted(self._settle(tokens), key=lambda pair: pair.fire_ms)
        if pairs:
            self._jobs_ahead = self._ids_ahead()
            self._late.append(PendingRuns.of(pairs))
            self._squeezed = False

    def squeeze(self) -> int:
        """Keep the newest run of each job, and every run of ``misfire=all`` jobs, within the limit; oldest go first.

        The others are skipped(backlog). Returns their number. Called while the destination is down.
        """
        if self._squeezed:
            return 0
        every = joined([self._late.clear(), self._fresh.clear(), *self._drain_offered()])
        every = every.at(np.argsort(every.ids, kind="stable"))  # fast: previously squeezed pairs are in order
        stays = np.ones(len(every.ids), np.bool_)
        stays[:-1] = every.ids[1:] != every.ids[:-1]
        (older,) = np.nonzero(~stays)
        if older.size:
            stays[older] = self.keep_all(every.ids[older])
        excess = int(np.count_nonzero(stays)) - self.limit
        if excess > 0:
            (kept,) = np.nonzero(stays)
            stays[kept[np.argsort(every.fire_ms[kept], kind="stable")[:excess]]] = False
        self._let_go(every.at(~stays), "backlog")
        self.left_queue += len(every.ids) - int(np.count_nonzero(stays))
        self._late.append(every.at(stays))
        self._late_by_id = self._squeezed = True
        self._jobs_ahead = None
        return int(np.count_nonzero(~stays))

    def drop(self, ids: Int64s, reason: str) -> int:
        """Skip the waiting runs of ``ids``; runs in flight stay. Returns the number of skipped pairs."""
        self._sort_in()
        dropped = 0
        for queue in (self._late, self._fresh):
            pairs = queue.clear()
            gone = np.isin(pairs.ids, ids)
            self._let_go(pairs.at(gone), reason)
            queue.append(pairs.at(~gone))
            dropped += int(np.count_nonzero(gone))
        self.left_queue += dropped
        if not self._late.count:
            self._jobs_ahead = None
        return dropped

    def shutdown(self) -> Leftover:
        """Skip all pending runs (``shutdown``). Read the mark before the call: these runs are not done."""
        fires_ms = list(self._fires(newest=True))
        leftover = Leftover(self.waiting + self.in_flight, self.oldest_fire_ms(), max(fires_ms, default=None))
        self._ledger.skip("shutdown", self._pending)
        self._pending = 0
        self._drain_offered()
        self._late, self._fresh = PendingQueue(), PendingQueue()
        self._jobs_ahead, self._late_by_id, self._squeezed = None, False, False
        self._in_flight.clear()
        self._blocks.clear()
        return leftover

    def _settle(self, tokens: Iterable[int]) -> list[PendingRun]:
        pairs = []
        for token in tokens:
            pair = self._in_flight.pop(token, None)
            if pair is None:
                self.strays += 1
            else:
                pairs.append(pair)
        return pairs

    def _let_go(self, pairs: PendingRuns, reason: str) -> None:
        counted = pairs.at((pairs.tag & REOFFERED) == 0)
        self._ledger.skip(reason, len(counted.ids))
        self._ledger.last_skips.note_runs(reason, counted.ids, counted.fire_ms)
        self._pending -= len(counted.ids)

    def _sort_in(self) -> None:
        """Queue the offered runs in order of fire times; jobs with late runs go to *late*, others to *fresh*."""
        if self.waiting > self.limit:
            self.squeeze()
        if not self._offered:
            return
        offered = joined(self._drain_offered())
        if np.any(offered.fire_ms[1:] < offered.fire_ms[:-1]):
            offered = offered.at(np.argsort(offered.fire_ms, kind="stable"))
        ahead = self._ids_ahead()
        if not len(ahead):
            self._fresh.append(offered)
            return
        place = np.minimum(np.searchsorted(ahead, offered.ids), len(ahead) - 1)
        behind = ahead[place] == offered.ids
        self._late.append(offered.at(behind))
        self._fresh.append(offered.at(~behind))

    def _ids_ahead(self) -> Int64s:
        if self._late.count and self._jobs_ahead is None:
            self._jobs_ahead = np.unique(np.concatenate([chunk.ids for chunk in self._late.chunks]))
        return _NOBODY if self._jobs_ahead is None else self._jobs_ahead

    def _drain_offered(self) -> list[PendingRuns]:
        offered, self._offered, self._offered_count = self._offered, [], 0
        return offered

    def _fires(self, *, newest: bool = False) -> Iterable[int]:
        blocks = (block.pairs.at(block.open) for block in self._blocks.values())
        for pairs in (*self._offered, *self._late.chunks, *self._fresh.chunks, *blocks):
            if len(pairs.ids):
                yield int(pairs.fire_ms.max() if newest else pairs.fire_ms.min())
        for pair in self._in_flight.values():
            yield pair.fire_ms
