"""The two lanes of one destination behind the interface of one.

A run takes the fast lane unless its job is an entry or its form has a reason against it. Both lanes share the ledger,
the quarantine and the mark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from celery_wheelbeat.dispatch import PublisherHealth

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Sequence

    from celery_wheelbeat.dispatch import Publisher
    from celery_wheelbeat.dispatch.backlog import Backlog, Leftover
    from celery_wheelbeat.dispatch.celery_lane.lane import CeleryLane, Rendering
    from celery_wheelbeat.dispatch.fast_lane.lane import FastLane
    from celery_wheelbeat.dispatch.fast_lane.publisher import FastPublisher
    from celery_wheelbeat.dispatch.lane import Settled
    from celery_wheelbeat.dispatch.one_offs import OneOffs
    from celery_wheelbeat.jobs.definitions import DueBatch
    from celery_wheelbeat.schedules.kinds import Int64s


class Dispatcher:
    """A fast lane and a celery lane, with the interface of ``CeleryLane``, which serves alone without a fast lane."""

    def __init__(self, slow: CeleryLane, fast: FastLane) -> None:
        self.slow = slow
        self.fast = fast
        self.backlog = LaneBacklogs([fast.backlog, slow.backlog])
        self.publisher = LanePublishers(slow.publisher, fast.sender)

    @property
    def rendering(self) -> Rendering | None:
        """Turns pending runs into sendable ones; None until the namespace of run ids is known."""
        return self.slow.rendering

    @rendering.setter
    def rendering(self, rendering: Rendering) -> None:
        self.slow.rendering = rendering
        self.fast.run_ids = rendering.run_ids
        self.fast.forms.forget_forms()  # the namespace is part of a header

    @property
    def one_offs(self) -> OneOffs:
        """The one-off jobs; all of them take the celery lane."""
        return self.slow.one_offs

    @property
    def quarantined(self) -> dict[int, str]:
        """Jobs that are not sent, with the reason."""
        return self.slow.quarantined

    @property
    def last_error(self) -> str:
        """The last failure of either lane; empty if there was none."""
        return self.fast.sender.trouble or self.fast.last_error or self.slow.last_error

    @property
    def failures(self) -> Counter[str]:
        """Unconfirmed sends of both lanes, by kind."""
        return self.fast.failures + self.slow.failures

    def offer(self, due: Iterable[DueBatch]) -> None:
        """Put due runs into the backlog of their lane. The fast lane moves runs that it cannot send later on."""
        self.fast.answers.look()
        forms = self.fast.forms
        for batch in due:
            slow = batch.ids < 0
            if forms.any_slow:
                slow |= forms.slow(batch.route_index)
            if not slow.any():
                self.fast.backlog.offer(batch)
            elif slow.all():
                self.slow.backlog.offer(batch)
            else:
                self.slow.backlog.offer(batch.take(slow))
                self.fast.backlog.offer(batch.take(~slow))

    def hand_over(self, now_s: float) -> int:
        """Let both lanes submit as many runs as they have room for; returns how many left the queues."""
        return self.fast.hand_over(now_s) + self.slow.hand_over(now_s)

    def may_hand_over(self) -> bool:
        """Return whether ``hand_over`` would submit anything."""
        return self.fast.may_hand_over() or self.slow.may_hand_over()

    def take_in(self, now_s: float) -> Settled:
        """Apply the outcomes of both publishers; returns the changes that concern whole jobs."""
        settled = self.slow.take_in(now_s)
        fast = self.fast.take_in(now_s)
        settled.poisoned.update(fast.poisoned)
        settled.lifted.extend(fast.lifted)
        return settled

    def finish(self, job_ids: Iterable[int]) -> None:
        """Disable one-off jobs that are done; their waiting runs are skipped(ended)."""
        ids = np.array(sorted(job_ids), np.int64)
        self.slow.finish(ids.tolist())
        self.fast.backlog.drop(ids, "ended")

    def redefined(self, ids: Int64s) -> list[int]:
        """Record that the definitions of ``ids`` changed; returns the jobs whose quarantine was lifted."""
        return self.fast.redefined(ids) + self.slow.redefined(ids)  # they share the quarantine


class LaneBacklogs:
    """The backlogs of all lanes as one: totals, and operations on every backlog."""

    def __init__(self, backlogs: Sequence[Backlog]) -> None:
        self._backlogs = backlogs

    @property
    def pending(self) -> int:
        """See ``Backlog``."""
        return sum(backlog.pending for backlog in self._backlogs)

    @property
    def waiting(self) -> int:
        """See ``Backlog``."""
        return sum(backlog.waiting for backlog in self._backlogs)

    @property
    def in_flight(self) -> int:
        """See ``Backlog``."""
        return sum(backlog.in_flight for backlog in self._backlogs)

    @property
    def strays(self) -> int:
        """See ``Backlog``."""
        return sum(backlog.strays for backlog in self._backlogs)

    def oldest_fire_ms(self) -> int | None:
        """See ``Backlog``."""
        return min((at for backlog in self._backlogs if (at := backlog.oldest_fire_ms()) is not None), default=None)

    def drop(self, ids: Int64s, reason: str) -> int:
        """See ``Backlog``."""
        return sum(backlog.drop(ids, reason) for backlog in self._backlogs)

    def shutdown(self) -> Leftover:
        """See ``Backlog``."""
        left = [backlog.shutdown() for backlog in self._backlogs]
        return left[0]._replace(
            runs=sum(one.runs for one in left),
            oldest_fire_ms=min((one.oldest_fire_ms for one in left if one.oldest_fire_ms is not None), default=None),
            newest_fire_ms=max((one.newest_fire_ms for one in left if one.newest_fire_ms is not None), default=None),
        )


class LanePublishers:
    """The publishers of both lanes as one: start, supervision and shutdown."""

    def __init__(self, slow: Publisher, sender: FastPublisher) -> None:
        self.destination = slow.destination
        self._slow = slow
        self._sender = sender

    @property
    def ended_by(self) -> BaseException | None:
        """See ``Publisher``."""
        return self._slow.ended_by or self._sender.ended_by

    def start(self) -> None:
        """Start the threads; in the process that sends, so after any fork."""
        self._slow.start()
        self._sender.start()

    def health(self) -> PublisherHealth:
        """Report for supervision: connected if both lanes are; the older stamp of the two."""
        slow, fast = self._slow.health(), self._sender.health()
        return PublisherHealth(
            slow.connected and fast.connected, slow.in_flight + fast.in_flight, min(slow.stamp_s, fast.stamp_s)
        )

    def close(self, timeout_s: float) -> None:
        """Stop within about ``timeout_s``; runs that are not settled by then stay in the backlogs."""
        self._sender.stop(timeout_s)
        self._slow.close(timeout_s)
        self._sender.close(timeout_s / 4)
