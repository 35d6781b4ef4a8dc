"""The demo's broker of files: a worker never sees half a message."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kombu import Connection, Exchange, Queue

from project.folder_broker import Transport

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def connection(tmp_path: Path) -> Any:
    options = {"data_folder_in": str(tmp_path), "data_folder_out": str(tmp_path), "control_folder": str(tmp_path / "c")}
    with Connection(transport=Transport, transport_options=options) as connection:
        yield connection


def test_a_message_is_complete_before_it_has_its_name(
    connection: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []
    rename = Path.rename

    def look(partial: Path, target: Path) -> Path:
        assert list(tmp_path.glob("*.msg")) == []
        seen.append(json.loads(partial.read_text()))
        return rename(partial, target)

    monkeypatch.setattr(Path, "rename", look)
    queue = Queue("celery")(connection.default_channel)
    queue.declare()
    connection.Producer().publish({"n": 1}, routing_key="celery")
    monkeypatch.undo()
    assert len(seen) == 1
    message = queue.get(no_ack=True)
    assert message.payload == {"n": 1}
    assert list(tmp_path.glob("*.partial")) == []


@pytest.fixture
def being_created(tmp_path: Path) -> Iterator[None]:
    """The bindings of the exchange ``events``: an empty file, into which another worker is about to write one."""
    table = tmp_path / "c" / "events.exchange"
    table.parent.mkdir(exist_ok=True)
    table.touch()
    writer = threading.Timer(0.05, table.write_text, ['[["key", "", "queue"]]'])
    writer.start()
    yield
    writer.join()


@pytest.mark.usefixtures("being_created")
def test_bindings_are_read_again_while_their_file_is_being_created(connection: Any) -> None:
    channel = connection.default_channel
    assert [binding.queue for binding in channel.get_table("events")] == ["queue"]


@pytest.mark.usefixtures("being_created")
def test_a_binding_is_added_once_the_file_of_another_worker_s_is_written(connection: Any) -> None:
    channel = connection.default_channel
    Queue("mine", exchange=Exchange("events"), routing_key="key")(channel).declare()
    assert {binding.queue for binding in channel.get_table("events")} == {"queue", "mine"}


def test_every_message_is_taken_by_one_of_many_workers(tmp_path: Path) -> None:
    options = {"data_folder_in": str(tmp_path), "data_folder_out": str(tmp_path), "control_folder": str(tmp_path / "c")}
    count, workers = 200, 4
    with Connection(transport=Transport, transport_options=options) as connection:
        Queue("celery")(connection.default_channel).declare()
        producer = connection.Producer()
        for number in range(count):
            producer.publish(number, routing_key="celery")

    def take_all(_: int) -> list[int]:
        taken = []
        with Connection(transport=Transport, transport_options=options) as connection:
            queue = Queue("celery")(connection.default_channel)
            while (message := queue.get(no_ack=True)) is not None:
                taken.append(message.payload)
        return taken

    with ThreadPoolExecutor(workers) as pool:
        taken = [number for numbers in pool.map(take_all, range(workers)) for number in numbers]
    assert sorted(taken) == list(range(count))
    assert not [file for file in tmp_path.iterdir() if file.is_file()]
