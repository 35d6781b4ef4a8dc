"""Backlog: the runs of one destination that are due and not yet settled, as (job, fire time) pairs.

Every offered run leaves in one way and one only: confirmed, or skipped with a reason; until then it is *pending*.
Pairs, not bytes: 20 B each in arrays, bounded by ``limit`` whatever the broker does. It must never render, send, wait.

Two queues: *late* holds what was there when the destination last failed, *fresh* what came since for other jobs. Both
get their share of what can be sent, so a drained outage does not delay what is due now, and the runs of one job are
still sent in the order of their fire times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from celery_wheelbeat.dispatch.pending import REOFFERED, STEP_SHIFT, Pair, PairQueue, Pairs, joined
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
    """What was pending at the end of a process."""

    runs: int
    oldest_fire_ms: int | None
    newest_fire_ms: int | None


class Block(NamedTuple):
    """Pairs that are on their way together; a closed one has left the block."""

    pairs: Pairs
    open: NDArray[np.bool_]


class Backlog:
    """The pending runs of one destination. Owned by the scheduling thread.

    Per tick: ``offer`` what is due, then either ``take`` what the publisher has room for, or ``squeeze`` while it is
    down. Outcomes come back through ``confirm``, ``give_back`` and ``skip``, by the token that ``take`` gave.
    """

    def __init__(self, ledger: Ledger, *, limit: int, keep_all: KeepAll) -> None:
        """``keep_all`` is asked about jobs whose older runs are about to be let go."""
        self.strays = 0
        """Outcomes of runs that were already settled; the only good value is 0."""
        self.left_queue = 0
        """How often a pair has stopped waiting: it was taken, perhaps again, or let go."""
        self._ledger = ledger
        self.limit = limit
        """Pairs that may wait."""
        self.keep_all = keep_all
        self._pending = 0
        self._offered: list[Pairs] = []
        self._offered_count = 0
        self._late = PairQueue()
        self._jobs_ahead: Int64s | None = None
        """Jobs whose runs go behind those in *late*, ascending; None = those in *late*, to be found again."""
        self._late_by_id = False
        """Whether *late* has to be sorted by fire time before it is taken from."""
        self._squeezed = False
        """Whether nothing has come since the last squeeze."""
        self._fresh = PairQueue()
        self._in_flight: dict[int, Pair] = {}
        self._blocks: dict[int, Block] = {}
        self._next_token = 0

    @property
    def pending(self) -> int:
        """Runs that are neither sent nor skipped: the term of the accounting identity."""
        return self._pending

    @property
    def waiting(self) -> int:
        """Pairs that can be taken; reoffered ones included."""
        return self._offered_count + self._late.count + self._fresh.count

    @property
    def in_flight(self) -> int:
        """Pairs that were taken and are not settled."""
        return len(self._in_flight) + sum(int(np.count_nonzero(block.open)) for block in self._blocks.values())

    def oldest_fire_ms(self) -> int | None:
        """Return the earliest fire time that is not settled, or None; the mark stays before it."""
        return min(self._fires(), default=None)

    def offer(self, due: DueBatch) -> None:
        """Take over the runs of ``due``; those of one call are in the order of their fire times."""
        tag = (REOFFERED if due.offer is Offer.REOFFERED else 0) | due.step << STEP_SHIFT
        self.adopt(Pairs(due.ids, due.fire_ms, np.full(len(due), tag, np.int32)))

    def adopt(self, pairs: Pairs) -> None:
        """Take over runs that another backlog released."""
        self._offered.append(pairs)
        self._squeezed = False
        self._offered_count += len(pairs.ids)
        self._pending += pairs.accounted()
        if self.waiting > 2 * self.limit:  # nobody takes, nobody squeezes: a full window that does not move
            self.squeeze()

    def take(self, runs: int) -> dict[int, Pair]:
        """Hand out up to ``runs`` pairs by token, the oldest first; half of the room is kept for what came since.

        A token is valid until ``confirm``, ``give_back`` or ``skip`` has seen it.
        """
        return self._hand_out(self._take(runs))

    def take_block(self, runs: int) -> tuple[int, Pairs]:
        """Hand out up to ``runs`` pairs as one block with one token, for ``break_up`` and ``confirm_block``."""
        pairs = self._take(runs)
        token = self._next_token
        self._next_token += 1
        self._blocks[token] = Block(pairs, np.ones(len(pairs.ids), np.bool_))
        return token, pairs

    def break_up(self, token: int, positions: Iterable[int]) -> dict[int, Pair]:
        """Take pairs out of a block; returns them by tokens of their own, in the order of ``positions``."""
        block = self._blocks[token]
        where = np.fromiter(positions, np.intp)
        block.open[where] = False
        return self._hand_out(block.pairs.at(where))

    def cut(self, token: int, at: int) -> int:
        """Make a block of its own of what stands at position ``at`` and after it in a block; returns its token."""
        block = self._blocks[token]
        rest = self._next_token
        self._next_token += 1
        self._blocks[token] = Block(block.pairs.at(slice(at)), block.open[:at])
        self._blocks[rest] = Block(block.pairs.at(slice(at, None)), block.open[at:])
        return rest

    def confirm_block(self, token: int) -> Pairs:
        """Count what is left of a block as taken over by the broker, and return it."""
        block = self._blocks.pop(token)
        pairs = block.pairs.at(block.open)
        accounted = pairs.accounted()
        self._ledger.confirm(accounted)
        self._ledger.reoffer(len(pairs.ids) - accounted)
        self._pending -= accounted
        return pairs

    def release(self, tokens: Iterable[int]) -> Pairs:
        """Give taken runs (at least one) away: another backlog has to ``adopt`` them."""
        pairs = Pairs.of(self._settle(tokens))
        self._pending -= pairs.accounted()
        return pairs

    def _take(self, runs: int) -> Pairs:
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

    def _hand_out(self, pairs: Pairs) -> dict[int, Pair]:
        runs = len(pairs.ids)
        tokens = range(self._next_token, self._next_token + runs)
        self._next_token += runs
        taken = dict(zip(tokens, pairs.singly(), strict=True))
        self._in_flight.update(taken)
        return taken

    def confirm(self, tokens: Iterable[int]) -> list[Pair]:
        """Count runs that the broker has taken responsibility for, and return them."""
        pairs = self._settle(tokens)
        again = sum(pair.tag & REOFFERED for pair in pairs)
        self._ledger.confirm(len(pairs) - again)
        self._ledger.reoffer(again)
        self._pending -= len(pairs) - again
        return pairs

    def skip(self, tokens: Iterable[int], reason: str) -> list[Pair]:
        """Let taken runs go for ``reason`` (``error``, ``unroutable``, ``removed`` …), and return them."""
        pairs = self._settle(tokens)
        if pairs:
            self._let_go(Pairs.of(pairs), reason)
        return pairs

    def give_back(self, tokens: Iterable[int]) -> None:
        """Put runs that were not sent, or perhaps not, at the head of the queue; everything waiting is late now."""
        pairs = sorted(self._settle(tokens), key=lambda pair: pair.fire_ms)
        if not pairs:
            return
        self._sort_in()
        for chunk in self._fresh.take(self._fresh.count):
            self._late.append(chunk)
        self._late.prepend(Pairs.of(pairs))
        self._jobs_ahead = None
        self._squeezed = False

    def queue_again(self, tokens: Iterable[int]) -> None:
        """Put runs that were refused behind the late ones: nothing has to wait for them, not even their jobs' own."""
        pairs = sorted(self._settle(tokens), key=lambda pair: pair.fire_ms)
        if pairs:
            self._jobs_ahead = self._ids_ahead()
            self._late.append(Pairs.of(pairs))
            self._squeezed = False

    def squeeze(self) -> int:
        """While the destination is down: keep the newest run of each job, all of ``misfire=all``, within the limit.

        The others are skipped(backlog). Returns how many went.
        """
        if self._squeezed:
            return 0
        every = joined([self._late.clear(), self._fresh.clear(), *self._drain_offered()])
        every = every.at(np.argsort(every.ids, kind="stable"))  # quick: what was squeezed before is already in order
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
        """Let go the waiting runs of ``ids``; what is in flight stays. Returns how many went."""
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
        """Skip everything that is left (``shutdown``). The mark has to be read before: these runs are not done."""
        fires_ms = list(self._fires(newest=True))
        leftover = Leftover(self.waiting + self.in_flight, self.oldest_fire_ms(), max(fires_ms, default=None))
        self._ledger.skip("shutdown", self._pending)
        self._pending = 0
        self._drain_offered()
        self._late, self._fresh = PairQueue(), PairQueue()
        self._jobs_ahead, self._late_by_id, self._squeezed = None, False, False
        self._in_flight.clear()
        self._blocks.clear()
        return leftover

    def _settle(self, tokens: Iterable[int]) -> list[Pair]:
        pairs = []
        for token in tokens:
            pair = self._in_flight.pop(token, None)
            if pair is None:
                self.strays += 1
            else:
                pairs.append(pair)
        return pairs

    def _let_go(self, pairs: Pairs, reason: str) -> None:
        counted = pairs.at((pairs.tag & REOFFERED) == 0)
        self._ledger.skip(reason, len(counted.ids))
        self._ledger.last_skips.note_runs(reason, counted.ids, counted.fire_ms)
        self._pending -= len(counted.ids)

    def _sort_in(self) -> None:
        """Queue what was offered since: in order of fire times, behind the late runs of the same jobs."""
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

    def _drain_offered(self) -> list[Pairs]:
        offered, self._offered, self._offered_count = self._offered, [], 0
        return offered

    def _fires(self, *, newest: bool = False) -> Iterable[int]:
        blocks = (block.pairs.at(block.open) for block in self._blocks.values())
        for pairs in (*self._offered, *self._late.chunks, *self._fresh.chunks, *blocks):
            if len(pairs.ids):
                yield int(pairs.fire_ms.max() if newest else pairs.fire_ms.min())
        for pair in self._in_flight.values():
            yield pair.fire_ms
