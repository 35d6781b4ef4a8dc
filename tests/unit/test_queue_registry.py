"""Job-specific queues: each is asked about once, a bounded number at a time, and which queues are plain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from celery import Celery
from kombu import Exchange, Queue
from kombu.common import Broadcast

from celery_wheelbeat.dispatch.fast_lane.envelope_registry import Declaring
from celery_wheelbeat.dispatch.fast_lane.places import queue_registry
from celery_wheelbeat.dispatch.fast_lane.places.queue_registry import AT_ONCE, MANY_OPEN, OPEN_MAX, QueueRegistry
from celery_wheelbeat.dispatch.messages.plain_queues import plain_queues

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Asked:
    """A publisher that only notes what it is asked."""

    def __init__(self, *, lasting: bool = True) -> None:
        self.questions: dict[Declaring, Sequence[str]] = {}
        self.queues = QueueRegistry(self.questions.__setitem__, lasting=lasting)

    def answer(self, reason: str = "") -> int:
        """Answer every question; returns the number of queues in them."""
        questions, self.questions = dict(self.questions), {}
        self.queues._declare = self.questions.__setitem__
        for question, names in questions.items():
            self.queues.learn(question, dict.fromkeys(names, reason))
        return sum(map(len, questions.values()))


def named(count: int) -> list[str]:
    return [f"q{number}" for number in range(count)]


def test_a_queue_is_asked_about_once() -> None:
    asked, names = Asked(), named(20)
    states = asked.queues.find(names)
    assert [len(some) for some in asked.questions.values()] == [AT_ONCE, AT_ONCE, 4]
    for question, some in asked.questions.items():
        assert {states[name] for name in some} == {question}, "runs wait for the question about their queue"
    assert asked.queues.find(names) == states
    assert asked.answer() == 20
    assert asked.queues.find(names) == dict.fromkeys(names, "")
    assert not asked.questions


def test_a_hundred_thousand_queues_take_a_step_each_and_few_are_open_at_a_time() -> None:
    asked, names, rounds, answered = Asked(), named(100_000), 0, 0
    for start in range(0, len(names), 2_000):
        waiting: Sequence[str] = names[start : start + 2_000]
        while waiting:
            states = asked.queues.find(waiting)
            assert list(states.values()).count(MANY_OPEN) == max(0, len(waiting) - OPEN_MAX)
            answered += asked.answer()
            waiting = [name for name, state in states.items() if state == MANY_OPEN]
            rounds += 1
    assert (rounds, answered) == (100, 100_000)


def test_a_queue_that_cannot_be_declared_has_its_reason_until_it_is_forgotten() -> None:
    asked = Asked()
    asked.queues.find(["bad"])
    asked.answer("no")
    asked.queues.find(["good"])
    asked.answer()
    assert asked.queues.find(["bad", "good"]) == {"bad": "no", "good": ""}
    asked.queues.forget_reasons()
    assert asked.queues.find(["good"]) == {"good": ""}
    assert isinstance(asked.queues.find(["bad"])["bad"], Declaring)


@pytest.mark.parametrize("lasting", [True, False])
def test_after_a_reconnect_only_lasting_queues_are_known_and_open_questions_are_asked_again(lasting: bool) -> None:
    asked = Asked(lasting=lasting)
    asked.queues.find(["known"])
    asked.answer()
    before = asked.queues.find(["open"])
    asked.queues.reconnected()
    assert asked.queues.find(["known"]) == {"known": ""} or not lasting
    assert asked.queues.find(["open"]) != before
    late = dict(before)
    asked.queues.learn(late["open"], {"open": ""})  # type: ignore[arg-type]
    assert isinstance(asked.queues.find(["open"])["open"], Declaring), "an answer from before counts for nothing"
    asked.queues.forget()
    assert isinstance(asked.queues.find(["known"])["known"], Declaring)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_registry, "QUEUES_MAX", 100)
    asked = Asked()
    for name in named(1_000):
        asked.queues.find([name])
        asked.answer()
        assert len(asked.queues._reasons) <= 100


CONFIGURED: Mapping[str, Queue] = {
    "plain": Queue("plain"),
    "own exchange": Queue("own exchange", Exchange("e"), "key"),
    "quorum": Queue("quorum", queue_arguments={"x-queue-type": "quorum"}),
    "topic": Queue("topic", Exchange("t", "topic"), "a.#"),
    "transient": Queue("transient", Exchange("d", delivery_mode=1)),
    "expiring": Queue("expiring", expires=60),
    "expires": Queue("expires", queue_arguments={"x-expires": 60_000}),
    "everybody": Broadcast("everybody"),
    "known": Queue("known", alias="alias"),
}


def test_plain_queues_differ_in_their_name_alone() -> None:
    app = Celery("queues", set_as_current=False, broker="memory://")
    app.conf.task_queues = CONFIGURED.values()
    is_plain = plain_queues(app)
    names = [*CONFIGURED, "alias", "new", "ü" * 127, "ü" * 128]
    assert [name for name in names if is_plain(name)] == ["plain", "own exchange", "quorum", "new", "ü" * 127]
    assert "new" not in app.amqp.queues


def test_without_missing_queues_only_those_of_the_configuration_are_plain() -> None:
    app = Celery("queues", set_as_current=False, broker="memory://")
    app.conf.update(task_queues=[Queue("plain")], task_create_missing_queues=False)
    is_plain = plain_queues(app)
    assert [name for name in ("plain", "new") if is_plain(name)] == ["plain"]


def test_new_queues_with_a_topic_exchange_are_not_plain() -> None:
    app = Celery("queues", set_as_current=False, broker="memory://")
    app.amqp.queues.autoexchange = lambda name: Exchange(name, "topic")
    assert not plain_queues(app)("new")
