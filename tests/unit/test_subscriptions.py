"""A result backend that is away concerns nobody who only sends."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from support.lanes.celery_lane import RecordingScheduler, StartedLane, a_run

from celery_wheelbeat.dispatch import Confirmed
from celery_wheelbeat.dispatch.messages.subscriptions import unsubscribed

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app whose result backend cannot be reached."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        app = Celery(
            "subscriptions",
            broker="memory://",
            backend=f"redis://127.0.0.1:{taken.getsockname()[1]}/0",
            set_as_current=False,
        )
        app.task(note, name="lane.note", shared=False)
        yield app
        app.close()


def note(number: int) -> None:
    """Have a result."""


def test_a_run_is_sent_though_the_result_backend_is_away(app: Celery) -> None:
    scheduler = RecordingScheduler(app, lazy=True)

    def apply_entry(entry: Any, producer: Any) -> None:
        with unsubscribed(app):
            scheduler.apply_entry(entry, producer=producer)

    lane = StartedLane(app, scheduler, apply_entry=apply_entry)
    lane.when_connected().submit([a_run(app, 1), a_run(app, 2)])
    assert [type(outcome) for outcome in lane.outcomes(2)] == [Confirmed, Confirmed]
    lane.lane.close(5)


def test_the_backend_is_left_as_it_was(app: Celery) -> None:
    before = app.backend.on_task_call
    with unsubscribed(app), unsubscribed(app):
        assert app.backend.on_task_call(None, "an id") is None
    with pytest.raises(ValueError, match="of the user's"), unsubscribed(app):
        raise ValueError("of the user's")
    assert app.backend.on_task_call == before
    assert "on_task_call" not in vars(app.backend)


def test_what_somebody_has_replaced_stays_in_force(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(type(app.backend), "on_task_call", lambda _self, _producer, task_id: called.append(task_id))
    with unsubscribed(app):
        app.backend.on_task_call(None, "an id")
    assert called == ["an id"]


@pytest.mark.parametrize("backend", ["disabled://", "cache+memory://", "no.such.module:Backend"])
def test_other_backends_are_nothing_to_it(backend: str) -> None:
    with unsubscribed(Celery("other", broker="memory://", backend=backend, set_as_current=False)):
        pass
