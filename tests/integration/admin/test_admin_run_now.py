"""Run now: from code, from the change page and for a selection; what is sent, who may, and what a double click is."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from celery._state import _set_current_app, current_app

from celery_wheelbeat import run_id
from celery_wheelbeat.commands.run_now import fire_ms_of, new_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIST = "/admin/wheelbeat/monitor/"


class Broker:
    """An app on kombu's transport in memory, and what was sent to its queues."""

    def __init__(self) -> None:
        self.app = Celery("site", broker=f"memory://{uuid.uuid4()}", set_as_current=False)
        self.app.conf.update(broker_connection_timeout=1, broker_transport_options={"polling_interval": 0})

    def messages(self, queue: str = "celery") -> list[Any]:
        """Take the messages out of a queue."""
        found = []
        with self.app.connection_for_write() as connection:
            while message := connection.default_channel.basic_get(queue, no_ack=True):
                found.append(message)
        return found


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker, former = Broker(), current_app._get_current_object()
    broker.app.set_current()
    yield broker
    _set_current_app(former)
    broker.app.close()


@pytest.fixture
def namespace(either: Any) -> str:
    from django_wheelbeat.models import Installation

    return str(Installation.objects.get().uuid)


def make(name: str = "m", **columns: Any) -> Any:
    from django_wheelbeat.models import Monitor

    return Monitor.objects.create(**{"name": name, "task": "t", "interval_ms": 60_000, **columns})


def request_in(page: Any) -> str:
    found = re.search(r'name="request" value="([0-9a-f-]{36})"', page.content.decode())
    assert found, page.content.decode()
    return found[1]


def history(monitor: Any) -> list[str]:
    from django.contrib.admin.models import LogEntry

    entries = LogEntry.objects.filter(object_id=str(monitor.pk)).order_by("pk")
    return [entry.get_change_message() for entry in entries]


def test_everything_that_the_monitor_says_is_sent(either: Any, broker: Broker, namespace: str) -> None:
    monitor = make(
        "Zürich–東京 😀",
        task="unknown.task",
        args="[1]",
        kwargs='{"s": "é\\u2028"}',
        queue="slow",
        priority=5,
        headers='{"tenant": "a"}',
        expires_s=90,
        options='{"soft_time_limit": 7, "compression": "gzip"}',
        overlap="skip",
        enabled=False,
    )
    request = new_request(1_764_000_000_123)
    sent_as = monitor.run_now(request)
    (message,) = broker.messages("slow")
    assert sent_as == run_id(f"monitor:{monitor.pk}", 1_764_000_000_123, namespace, f"!{request}")
    assert message.headers["id"] == sent_as
    args, kwargs, _ = message.payload
    assert (args, kwargs) == ([1], {"s": "é\u2028"})
    assert message.headers["task"] == "unknown.task"
    assert message.headers["timelimit"] == [None, 7]
    assert message.headers["expires"] is not None
    assert message.headers["compression"] == "application/x-gzip"
    assert message.properties["priority"] == 5
    ours = {
        "tenant": "a",
        "celery_beat_task": True,
        "periodic_task_name": "Zürich–東京 😀",
        "wheelbeat_fire_ms": 1_764_000_000_123,
        "wheelbeat_overlap": "skip",
        "wheelbeat_job": f"{namespace}/monitor:{monitor.pk}",
    }
    assert {name: message.headers[name] for name in ours} == ours
    assert len(message.headers["wheelbeat_nonce"]) == 32


def test_it_runs_as_stored_and_writes_nothing(either: Any, broker: Broker) -> None:
    from django_wheelbeat.models import Change, Monitor

    read_long_ago = make(one_off=True)
    Monitor.objects.update(args='["edited"]')
    changes, stored = Change.objects.count(), Monitor.objects.values().get()
    read_long_ago.run_now()
    (message,) = broker.messages()
    assert message.payload[0] == ["edited"]
    assert Change.objects.count() == changes
    assert Monitor.objects.values().get() == stored


def test_the_option_task_id_wins_and_next_expires_at_the_next_fire(either: Any, broker: Broker) -> None:
    request = new_request(1_764_000_000_123)
    assert make("own", options='{"task_id": "mine"}').run_now(request)
    make("next", expires_next=True, jitter_s=0).run_now(request)
    own, following = broker.messages()
    assert own.headers["id"] == "mine"
    assert following.headers["expires"].startswith("2025-11-24T16:01:00")


def test_one_request_is_one_run_and_two_are_two(either: Any, broker: Broker) -> None:
    monitor = make()
    request = new_request(1_764_000_000_000)
    assert monitor.run_now(request) == monitor.run_now(request)
    assert monitor.run_now() != monitor.run_now()
    first, second, *_ = broker.messages()
    assert first.headers["wheelbeat_fire_ms"] == second.headers["wheelbeat_fire_ms"] == fire_ms_of(request)
    assert first.headers["wheelbeat_nonce"] != second.headers["wheelbeat_nonce"]


def test_what_cannot_be_sent_says_why(either: Any, broker: Broker) -> None:
    from celery_wheelbeat.errors import InvalidMonitor, SendFailed

    with pytest.raises(InvalidMonitor, match="args"):
        make(args="[1,").run_now()
    broker.app.conf.task_publish_retry = False
    broker.app.conf.broker_url = "redis://127.0.0.1:1/0"
    with pytest.raises(SendFailed, match=r"127\.0\.0\.1:1"):
        make("b").run_now()


def test_the_button_sends_one_run_and_says_which(
    either: Any, broker: Broker, login: Callable[..., Any], namespace: str
) -> None:
    monitor = make()
    browser = login()
    request = request_in(browser.get(f"{LIST}{monitor.pk}/change/"))
    page = browser.post(f"{LIST}{monitor.pk}/run/", {"request": request}, follow=True)
    sent_as = run_id(f"monitor:{monitor.pk}", fire_ms_of(uuid.UUID(request)), namespace, f"!{request}")
    assert sent_as in page.content.decode()
    assert history(monitor) == [f"Run now: {sent_as}"]
    browser.post(f"{LIST}{monitor.pk}/run/", {"request": request})
    assert [message.headers["id"] for message in broker.messages()] == [sent_as, sent_as]


@pytest.mark.parametrize(
    "request_text",
    ["", "x", str(uuid.uuid4()), str(new_request(1_764_000_000_000))],
    ids=["empty", "no uuid", "uuid without an instant", "uuid of an hour ago"],
)
def test_a_page_that_was_left_open_sends_nothing(
    db: Any, broker: Broker, login: Callable[..., Any], request_text: str
) -> None:
    monitor = make()
    page = login().post(f"{LIST}{monitor.pk}/run/", {"request": request_text}, follow=True)
    assert "nothing was sent" in page.content.decode()
    assert broker.messages() == []


def test_a_selection_is_run_after_it_was_asked(either: Any, broker: Broker, login: Callable[..., Any]) -> None:
    good = [make(f"good {number}", enabled=number > 0, tags="eu", args=f"[{number}]") for number in range(3)]
    bad = make("bad", kwargs="{", tags="eu")
    other = make("other")
    browser = login()
    chosen = {"action": "run_monitors_now", "_selected_action": [bad.pk], "select_across": "1", "index": "0"}
    page = browser.post(f"{LIST}?tag=eu", chosen)
    assert "4 monitors will be run now" in page.content.decode()
    assert broker.messages() == []
    page = browser.post(f"{LIST}?tag=eu", chosen | {"run": "1", "request": request_in(page)}, follow=True)
    assert "3 runs were sent." in page.content.decode()
    assert "1 monitor was not changed: bad: kwargs" in page.content.decode()
    assert sorted(message.payload[0] for message in broker.messages()) == [[0], [1], [2]]
    assert all("Run now: " in history(monitor)[0] for monitor in good)
    assert history(other) == []


def test_where_a_broker_fails_on_the_way_the_rest_can_be_sent_later(
    db: Any, broker: Broker, login: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [make(f"m{number}", args="[" if number == 1 else "[]").pk for number in range(4)]
    browser = login()
    chosen = {"action": "run_monitors_now", "_selected_action": ids, "index": "0"}
    request = request_in(browser.post(LIST, chosen))
    send, sent = broker.app.amqp.send_task_message, []

    def failing(*args: Any, **kwargs: Any) -> Any:
        if len(sent) == 1:
            raise ConnectionResetError("the broker went away")
        sent.append(1)
        return send(*args, **kwargs)

    monkeypatch.setattr(broker.app.amqp, "send_task_message", failing)
    page = browser.post(LIST, chosen | {"run": "1", "request": request})
    assert "1 of 4 runs were sent, then: " in page.content.decode()
    assert "data-continues" not in page.content.decode(), "it waits to be asked"
    monkeypatch.undo()
    page = browser.post(LIST, chosen | {"progress": page.context["bulk_pass"].signed()}, follow=True)
    assert "3 runs were sent." in page.content.decode()
    assert "1 monitor was not changed: m1" in page.content.decode()
    runs = [message.headers["id"] for message in broker.messages()]
    assert len(runs) == len(set(runs)) == 3, "nothing is sent again"


@pytest.mark.parametrize("many", [False, True], ids=["few", "many"])
def test_everything_that_matches_is_run_in_steps_with_progress(
    either: Any, broker: Broker, login: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    from django.contrib.admin.models import LogEntry

    from django_wheelbeat.admin import run_page as run_admin
    from django_wheelbeat.bulk import progress

    monkeypatch.setattr(run_admin, "CHUNK_SENT", 2)
    monkeypatch.setattr(progress, "STEP_S", 0.0)
    monkeypatch.setattr(run_admin, "BULK_ROWS", 4 if many else 10_000)
    for number in range(5):
        make(f"m{number}", tags="eu")
    make("other")
    browser = login()
    chosen = {"action": "run_monitors_now", "_selected_action": ["0"], "select_across": "1", "index": "0"}
    page = browser.post(f"{LIST}?tag=eu", chosen)
    assert "5 monitors will be run now" in page.content.decode()
    page = browser.post(f"{LIST}?tag=eu", chosen | {"run": "1", "request": request_in(page)})
    seen, sent = [], []
    while page.status_code == 200:
        assert "data-continues" in page.content.decode()
        bulk_pass = page.context["bulk_pass"]
        seen.append(bulk_pass.seen)
        sent.append(len(broker.messages()))
        forged = browser.post(LIST, chosen | {"progress": bulk_pass.signed()})
        assert "will be run now" in forged.content.decode(), "another filter was never confirmed"
        page = browser.post(f"{LIST}?tag=eu", chosen | {"progress": bulk_pass.signed()})
    assert (seen, sent, len(broker.messages())) == ([2, 4], [2, 2], 1)
    lines = list(LogEntry.objects.values_list("object_repr", "change_message"))
    if many:
        assert lines == [("5 monitors", "Run now.")]
    else:
        assert len(lines) == 5
        assert all(message.startswith("Run now: ") for _, message in lines)


def test_a_form_that_is_too_old_is_shown_afresh(db: Any, broker: Broker, login: Callable[..., Any]) -> None:
    chosen = {"action": "run_monitors_now", "_selected_action": [make().pk], "index": "0", "run": "1"}
    old = str(new_request(1_764_000_000_000))
    page = login().post(LIST, chosen | {"request": old})
    assert request_in(page) != old
    assert broker.messages() == []


@pytest.mark.parametrize(
    ("only", "may"),
    [
        (("view_monitor", "run_monitor"), True),
        (("change_monitor", "add_monitor", "delete_monitor"), False),
        (("view_monitor",), False),
        (("run_monitor",), False),
    ],
)
def test_running_needs_its_own_permission(
    db: Any, broker: Broker, login: Callable[..., Any], only: tuple[str, ...], may: bool
) -> None:
    monitor = make()
    browser = login("bob", only=only)
    if "run_monitor" not in only or may:
        assert (b"Run now" in browser.get(f"{LIST}{monitor.pk}/change/").content) is may
    for url, data in (
        (f"{LIST}{monitor.pk}/run/", {}),
        (LIST, {"action": "run_monitors_now", "_selected_action": [monitor.pk], "index": "0", "run": "1"}),
    ):
        browser.post(url, data | {"request": str(new_request(_now_ms()))})
    assert len(broker.messages()) == (2 if may else 0)


def test_nothing_is_sent_for_a_get_or_a_forged_form(db: Any, broker: Broker, login: Callable[..., Any]) -> None:
    monitor = make()
    browser = login(enforce_csrf_checks=True)
    url = f"{LIST}{monitor.pk}/run/"
    assert browser.get(url, {"request": str(new_request(_now_ms()))}).status_code == 405
    assert browser.post(url, {"request": str(new_request(_now_ms()))}).status_code == 403
    assert broker.messages() == []


def _now_ms() -> int:
    from django_wheelbeat.monitors.times import now_ms

    return now_ms()
