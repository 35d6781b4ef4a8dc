"""What an exception of a publish says about the run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import amqp.exceptions
import celery.beat
import celery.exceptions
import kombu.exceptions
import pytest
import redis.exceptions
from kombu import Connection

from celery_wheelbeat.dispatch import FailureKind
from celery_wheelbeat.dispatch.broker import REPLY_TIMEOUT_S, SENTINEL_TIMEOUT_S, open_connection
from celery_wheelbeat.dispatch.failures import BatchFailed, diagnose, is_state
from celery_wheelbeat.dispatch.reconnection import FIRST_S, LONGEST_S, Backoff

PUBLISH, DECLARE = (60, 40), (50, 10)


def wrapped(cause: BaseException) -> BaseException:
    """Wrap as kombu and Celery do."""
    middle = kombu.exceptions.OperationalError(str(cause))
    middle.__cause__ = cause
    outer = celery.beat.SchedulingError("Couldn't apply scheduled task")
    outer.__context__ = middle
    return outer


@pytest.mark.parametrize(
    ("url", "error", "kind"),
    [
        ("redis://", redis.exceptions.ConnectionError("gone"), FailureKind.UNCERTAIN),
        ("redis://", redis.exceptions.TimeoutError("slow"), FailureKind.UNCERTAIN),
        ("redis://", redis.exceptions.BusyLoadingError("loading"), FailureKind.UNCERTAIN),
        ("redis://", redis.exceptions.OutOfMemoryError("OOM command not allowed"), FailureKind.REFUSED),
        ("redis://", redis.exceptions.ReadOnlyError("READONLY"), FailureKind.REFUSED),
        ("redis://", redis.exceptions.ResponseError("WRONGTYPE Operation against a key"), FailureKind.UNROUTABLE),
        ("redis://", redis.exceptions.DataError("Invalid input of type"), FailureKind.POISON),
        ("redis://", BatchFailed("delivery is uncertain"), FailureKind.UNCERTAIN),
        ("redis://", KeyError("in the user's code"), FailureKind.ERROR),
        ("redis://", TypeError("check() takes 1 positional argument"), FailureKind.ERROR),
        ("redis://", kombu.exceptions.EncodeError("not serializable"), FailureKind.POISON),
        ("redis://", kombu.exceptions.SerializerNotInstalled("No encoder installed for x"), FailureKind.POISON),
        ("amqp://", celery.exceptions.QueueNotFound("q"), FailureKind.UNROUTABLE),
        ("amqp://", amqp.exceptions.FrameSyntaxError("Table type set not handled by amqp"), FailureKind.POISON),
        ("amqp://", amqp.exceptions.FrameSyntaxError("from RabbitMQ", PUBLISH), FailureKind.UNCERTAIN),
        ("amqp://", amqp.exceptions.NotFound("no exchange", PUBLISH), FailureKind.UNROUTABLE),
        ("amqp://", amqp.exceptions.MessageNacked(), FailureKind.REFUSED),
        ("amqp://", amqp.exceptions.PreconditionFailed("larger than max", PUBLISH), FailureKind.POISON),
        ("amqp://", amqp.exceptions.PreconditionFailed("inequivalent arg", DECLARE), FailureKind.UNROUTABLE),
        ("amqp://", amqp.exceptions.ChannelError("NO_ROUTE", (60, 50), reply_code=312), FailureKind.UNROUTABLE),
        ("amqp://", amqp.exceptions.ConnectionForced("shutdown"), FailureKind.UNCERTAIN),
        ("amqp://", BrokenPipeError(32, "Broken pipe"), FailureKind.UNCERTAIN),
        ("filesystem://", OSError(28, "No space left on device"), FailureKind.UNCERTAIN),
        ("memory://", ValueError("a router's"), FailureKind.ERROR),
    ],
)
def test_the_kind_of_a_failure(url: str, error: BaseException, kind: FailureKind) -> None:
    connection = Connection(url)
    for exc in (error, wrapped(error)):
        found, reason, in_doubt = diagnose(exc, connection)
        assert found is kind
        assert in_doubt is (kind is FailureKind.UNCERTAIN or getattr(error, "method_sig", None) is not None)
        assert reason.startswith(f"{type(error).__name__}: ")
        assert "\n" not in reason


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        ("OutOfMemoryError: command not allowed when used memory > 'maxmemory'.", True),
        ("ReadOnlyError: You can't write against a read only replica.", True),
        ("ResponseError: MISCONF Redis is configured to save RDB snapshots", True),
        ("ResponseError: Command # 1 (SADD a b) of pipeline caused error: NOREPLICAS Not enough good replicas", True),
        ("NoPermissionError: this user has no permissions to run the 'sadd' command", False),
        ("ResponseError: WRONGTYPE Operation against a key holding the wrong kind of value", False),
        ("ValueError: MISCONF is what the user wrote", False),
    ],
)
def test_what_a_server_refuses_for_its_own_state(reason: str, state: bool) -> None:
    assert is_state(reason) is state


def test_a_reason_is_one_bounded_line() -> None:
    reason = diagnose(ValueError("a\nb" * 1000), Connection("memory://")).reason
    assert len(reason) == 500
    assert "\n" not in reason


def test_an_endless_chain_of_causes_ends() -> None:
    first, second = ValueError("1"), ValueError("2")
    first.__cause__, second.__cause__ = second, first
    assert diagnose(first, Connection("memory://")) == (FailureKind.ERROR, "ValueError: 1", False)


@pytest.mark.parametrize(
    ("url", "given", "expected"),
    [
        ("redis://", {}, {"socket_timeout": REPLY_TIMEOUT_S, "socket_connect_timeout": REPLY_TIMEOUT_S}),
        ("redis://", {"socket_timeout": 3, "x": 1}, {"socket_timeout": 3, "x": 1}),
        ("amqp://", {"confirm_publish": False}, {"confirm_publish": True, "read_timeout": REPLY_TIMEOUT_S}),
        ("memory://", {"x": 1}, {"x": 1}),
    ],
)
def test_every_wait_for_a_broker_is_bounded_and_amqp_confirms(
    url: str, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    app = SimpleNamespace(connection_for_write=lambda: Connection(url, transport_options=given))
    options = open_connection(app).transport_options
    assert {name: options[name] for name in expected} == expected


def test_what_is_said_about_sentinels_stands_and_the_rest_is_bounded() -> None:
    given = {"master_name": "main", "sentinel_kwargs": {"ssl": True, "socket_timeout": 1}}
    app = SimpleNamespace(connection_for_write=lambda: Connection("sentinel://", transport_options=given))
    options = open_connection(app).transport_options
    assert options["sentinel_kwargs"].pop("retry")._retries == 0
    assert options["sentinel_kwargs"] == {
        "ssl": True,
        "socket_timeout": 1,
        "socket_connect_timeout": SENTINEL_TIMEOUT_S,
    }
    assert options["socket_timeout"] == REPLY_TIMEOUT_S


def test_waits_double_up_to_a_bound_and_begin_again() -> None:
    backoff = Backoff()
    waits = [backoff.next_s() for _ in range(20)]
    assert FIRST_S / 2 <= waits[0] <= FIRST_S
    assert all(LONGEST_S / 2 <= wait <= LONGEST_S for wait in waits[10:])
    backoff.reset()
    assert backoff.next_s() <= FIRST_S
