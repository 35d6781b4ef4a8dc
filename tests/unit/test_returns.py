"""Messages that come back: the queue is declared again and the run offered once more, and never more than once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_wheelbeat.dispatch import FailureKind
from celery_wheelbeat.dispatch.fast_lane.amqp_refusals import Returned, Returns

if TYPE_CHECKING:
    from celery_wheelbeat.dispatch.fast_lane.batches import Failure


class Broker:
    """Declares queues, or does not."""

    def __init__(self) -> None:
        self.declared: list[str] = []
        self.forbidden: set[str] = set()
        self.broken = False
        self.returns = Returns(self.declare)

    def declare(self, queue: str) -> bool:
        if self.broken:
            raise ConnectionError
        self.declared.append(queue)
        return queue not in self.forbidden

    def kinds(self, *runs: int, queue: str = "q") -> list[FailureKind]:
        """What becomes of runs that come back together."""
        failures: list[Failure] = []
        for position, run in enumerate(runs):
            self.returns.note(Returned([position], (f"id-{run}", run), queue, "NO_ROUTE"), failures)
        self.returns.judge()
        assert [failure.positions for failure in failures] == [[position] for position in range(len(runs))]
        return [failure.kind for failure in failures]


AGAIN, GONE = FailureKind.NOT_SENT, FailureKind.UNROUTABLE


def test_a_queue_is_declared_once_for_all_and_each_run_is_offered_once_more() -> None:
    broker = Broker()
    assert broker.kinds(1, 2, 3) == [AGAIN] * 3
    assert broker.declared == ["q"]
    assert broker.kinds(1, 2) == [GONE] * 2
    assert broker.declared == ["q"], "nothing is declared for runs that are skipped"
    assert broker.kinds(3, 4) == [GONE, AGAIN]
    assert broker.kinds(1) == [AGAIN], "a run that was skipped and is offered again, as after a restart"


def test_a_named_exchange_and_a_queue_that_may_not_be_declared_are_for_good() -> None:
    broker = Broker()
    assert broker.kinds(1, queue="") == [GONE]
    assert broker.declared == []
    broker.forbidden.add("q")
    assert broker.kinds(1, 2) == [GONE] * 2


def test_what_was_settled_before_is_not_settled_again() -> None:
    returns = Returns(Broker().declare)
    failures: list[Failure] = []
    returns.note(Returned([], ("id", 1), "q", "NO_ROUTE"), failures)
    returns.judge()
    assert failures == []


def test_a_connection_lost_while_declaring_loses_no_run() -> None:
    broker = Broker()
    failures: list[Failure] = []
    broker.returns.note(Returned([7], ("id", 1), "q", "NO_ROUTE"), failures)
    broker.broken = True
    with pytest.raises(ConnectionError):
        broker.returns.judge()
    broker.broken = False
    broker.returns.judge()
    assert [(failure.positions, failure.kind) for failure in failures] == [([7], AGAIN)]


def test_what_comes_back_while_a_queue_is_declared_is_judged_too() -> None:
    late: list[Failure] = []
    told = iter([True])

    def declare(queue: str) -> bool:
        if next(told, False):
            returns.note(Returned([0], ("late", 1), queue, "NO_ROUTE"), late)
        return True

    returns = Returns(declare)
    returns.note(Returned([0], ("early", 1), "q", "NO_ROUTE"), [])
    returns.judge()
    assert [failure.kind for failure in late] == [AGAIN]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_wheelbeat.dispatch.fast_lane.amqp_refusals.REMEMBERED_MAX", 3)
    broker = Broker()
    assert broker.kinds(*range(10)) == [AGAIN] * 10
    assert len(broker.returns._once) == 3
