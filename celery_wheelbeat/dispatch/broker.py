"""The broker connection of a lane: opened as the app would open it, with a bound on every wait.

The user's ``broker_transport_options`` win; missing time-outs get a default. AMQP always gets publisher confirms,
because a run must not count as sent merely because no error was seen.
"""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING, Any

import amqp.exceptions

from celery_wheelbeat.errors import InvalidSetting, reason_of
from celery_wheelbeat.settings.urls import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("celery.beat")

REPLY_TIMEOUT_S = 10.0
"""Longest wait for one reply of a broker; far below ``wheelbeat_live_timeout``."""
SENTINEL_TIMEOUT_S = 2.0
"""Longest wait for one Sentinel: the first one may have died with the master, and the next one can answer."""

_REDIS = {"socket_timeout": REPLY_TIMEOUT_S, "socket_connect_timeout": REPLY_TIMEOUT_S, "socket_keepalive": True}
_PATIENCE = {socket.TCP_USER_TIMEOUT: 0} if hasattr(socket, "TCP_USER_TIMEOUT") else {}
"""Turns off py-amqp's TCP_USER_TIMEOUT of one second, which ends a connection whose peer stops reading, as RabbitMQ
does in an alarm. Heartbeats and time-outs detect dead peers."""
_AMQP = {
    "confirm_publish": True,
    "read_timeout": REPLY_TIMEOUT_S,
    "write_timeout": REPLY_TIMEOUT_S,
    "socket_settings": _PATIENCE,
}
_BOUNDS: dict[str, dict[str, Any]] = {"redis": _REDIS, "amqp": _AMQP}


def driver_type(app: Any) -> str:
    """Return kombu's name for the kind of broker that ``app`` sends to (``redis``, ``amqp``, ``sqs`` …); no I/O.

    Raises ``InvalidSetting`` if the transport cannot be loaded because its package is missing or its name is wrong.
    """
    try:
        return str(app.connection_for_write().get_transport_cls().driver_type)
    except ValueError:  # raised by the URL parser; its text quotes a part of the URL
        raise InvalidSetting(f"broker_url {UNREADABLE}") from None
    except Exception as error:  # kombu does not wrap exceptions of the import
        raise InvalidSetting(
            f"broker_url: its transport cannot be loaded ({type(error).__name__}: {error}): "
            "correct it, or install the package that it needs"
        ) from error


def open_connection(app: Any) -> Any:
    """Return a kombu ``Connection`` for publishing, not connected."""
    connection = app.connection_for_write()
    bounds = _BOUNDS.get(connection.get_transport_cls().driver_type, {})
    options = {**bounds, **(connection.transport_options or {})}
    if "master_name" in options:
        options["sentinel_kwargs"] = {**_of_sentinels(), **(options.get("sentinel_kwargs") or {})}
    connection.transport_options = options
    if is_amqp(connection):
        connection.transport_options["confirm_publish"] = True
    return connection


def _of_sentinels() -> dict[str, Any]:
    """Return connection options for Sentinels. By default redis-py tries each ten times before the next one."""
    from redis.backoff import NoBackoff  # noqa: PLC0415 - an optional extra
    from redis.retry import Retry  # noqa: PLC0415 - an optional extra

    once = Retry(NoBackoff(), 0)
    return {"socket_timeout": SENTINEL_TIMEOUT_S, "socket_connect_timeout": SENTINEL_TIMEOUT_S, "retry": once}


def close_connection(connection: Any, *, broken: bool) -> None:
    """Close a kombu ``Connection``; a ``broken`` one only on our side, since the broker may not be reading."""
    try:
        if broken:
            connection.collect(socket_timeout=REPLY_TIMEOUT_S)
        else:
            connection.release()
    except Exception as error:
        logger.debug("beat: Closing a connection failed: %r", error)


def is_amqp(connection: Any) -> bool:
    """Return whether this connection has publisher confirms and returns."""
    return bool(connection.get_transport_cls().driver_type == "amqp")


def refusal_in_trial(publish: Callable[[Any], None], open_connection: Callable[[], Any]) -> str:
    """Return why RabbitMQ refuses what ``publish`` writes; empty if it accepts it or cannot be asked.

    ``publish`` is called with a py-amqp channel of a new connection, in a transaction that is rolled back: RabbitMQ
    answers a refused message by closing the channel.
    """
    connection = open_connection()
    selected = False
    refusal = ""
    try:
        connection.connect()
        channel = connection.connection.channel()
        channel.tx_select()
        selected = True
        publish(channel)
        channel.tx_rollback()
    except Exception as error:
        close_connection(connection, broken=True)
        if selected and isinstance(error, amqp.exceptions.AMQPError) and error.method_sig is not None:
            refusal = reason_of(error)  # sent by the broker, not raised by py-amqp
        else:
            logger.debug("beat: A message could not be tried: %r", error)
    else:
        close_connection(connection, broken=False)
    return refusal
