"""Private names of libraries that the package uses: all are listed in decision 33, and exist with their meaning."""

from __future__ import annotations

import ast
import re
import socket
from pathlib import Path

import kombu.utils.json
import pytest
import redis
from celery import Celery, Task
from celery.beat import ScheduleEntry, Scheduler
from celery.local import Proxy
from celery.schedules import crontab
from kombu import Producer, serialization
from kombu.transport import redis as kombu_redis
from kombu.transport import virtual

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "celery_wheelbeat"
DECISION = ROOT / "docs" / "decisions" / "0033-private-names-of-libraries.md"
OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}
"""Public methods of named tuples."""


def _own(tree: ast.Module) -> set[str]:
    """Return the private names that a module defines itself."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Attribute(ast.Name("self" | "cls"), name, ast.Store()):
                names.add(name)
    return names


def _used(tree: ast.Module) -> set[str]:
    """Return the private names that a module looks up in the objects of others."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name("self" | "cls")):
                continue
            case ast.Attribute(attr=name):
                names.add(name)
            case ast.Call(ast.Name("getattr" | "hasattr" | "setattr"), [_, ast.Constant(str(name)), *_]):
                names.add(name)
            case ast.ImportFrom(module=str(module), names=aliases) if not module.startswith("celery_wheelbeat"):
                names |= {alias.name for alias in aliases}
    return {name for name in names if re.match("_[^_]", name)}


def test_every_private_name_of_a_library_is_in_the_decision() -> None:
    trees = [ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")]
    used = set().union(*(_used(tree) - _own(tree) for tree in trees)) - OF_NAMED_TUPLES
    rows = [line for line in DECISION.read_text().splitlines() if line.startswith("| `")]
    assert used == {name for row in rows for name in re.findall(r"`\w+\.(_\w+)`", row.split("|")[1])}


def test_a_connection_of_redis_py_has_a_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = redis.Connection(port=server.getsockname()[1], redis_connect_func=lambda _connection: None)
        connection.connect()
        assert isinstance(connection._sock, socket.socket)
        assert connection._sock.getpeername() == server.getsockname()
        connection.disconnect()


def test_kombu_puts_one_message_into_a_queue_by_put_and_finds_queues_by_lookup() -> None:
    assert callable(virtual.Channel._lookup)
    assert kombu_redis.Channel._put is not virtual.Channel._put
    assert callable(Producer._publish)
    assert callable(Producer._prepare)


def test_kombu_has_a_list_for_each_step_of_priorities() -> None:
    channel = kombu_redis.Channel.__new__(kombu_redis.Channel)
    channel.sep, channel.priority_steps = ":", [0, 3, 6, 9]
    levels = [channel._get_message_priority({"properties": {"priority": one}}, reverse=False) for one in (0, 4, 255)]
    assert [channel._q_for_pri("q", level) for level in levels] == ["q", "q:3", "q:9"]


def test_kombu_notes_queues_that_expire_if_it_has_them() -> None:
    source = Path(kombu_redis.__file__).read_text()
    assert ("self._expires = {}" in source) == ("x-expires" in source)


def test_a_task_without_pydantic_has_nothing_to_dump_its_arguments() -> None:
    assert getattr(Task, "_dump_pydantic_arguments", None) is None  # Celery 5.5 has no such name


def test_kombu_knows_its_own_encoder() -> None:
    assert serialization.registry._encoders["json"].encoder is kombu.utils.json.dumps


@pytest.mark.parametrize(("field", "written"), [("minute", "*/5"), ("hour", "*")])
def test_a_crontab_remembers_what_was_written(field: str, written: str) -> None:
    assert getattr(crontab(**{field: written}), f"_orig_{field}") == written


def test_celery_builds_entries_and_shows_the_app_behind_a_proxy() -> None:
    app = Celery("names", broker="memory://", set_as_current=False)
    built = Scheduler(app, lazy=True)._maybe_entry("a", {"task": "t", "schedule": 1.0})
    assert isinstance(built, ScheduleEntry)
    assert built.name == "a"
    assert Proxy(lambda: app)._get_current_object() is app
