"""The broker connection of a lane: opened as the app would open it, but never waiting for ever.

The user's ``broker_transport_options`` stand; what they leave open gets a bound, and AMQP gets publisher confirms,
because nothing may count as sent for want of an error.
"""

from __future__ import annotations

import logging
import socket
from typing import Any

from celery_wheelbeat.errors import InvalidSetting
from celery_wheelbeat.settings.urls import UNREADABLE

logger = logging.getLogger("celery.beat")

REPLY_TIMEOUT_S = 10.0
"""Longest wait for one reply of a broker; far below ``wheelbeat_live_timeout``."""
SENTINEL_TIMEOUT_S = 2.0
"""Longest wait for a Sentinel: the one that is asked first may have died with the master, and the next one knows."""

_REDIS = {"socket_timeout": REPLY_TIMEOUT_S, "socket_connect_timeout": REPLY_TIMEOUT_S, "socket_keepalive": True}
_PATIENCE = {socket.TCP_USER_TIMEOUT: 0} if hasattr(socket, "TCP_USER_TIMEOUT") else {}
"""py-amqp has TCP end a connection whose peer reads nothing for a second, as RabbitMQ does in an alarm; peers that are
gone are found by heartbeats and time-outs."""
_AMQP = {
    "confirm_publish": True,
    "read_timeout": REPLY_TIMEOUT_S,
    "write_timeout": REPLY_TIMEOUT_S,
    "socket_settings": _PATIENCE,
}
_BOUNDS: dict[str, dict[str, Any]] = {"redis": _REDIS, "amqp": _AMQP}


def driver_type(app: Any) -> str:
    """Return kombu's name for the kind of broker that ``app`` sends to (``redis``, ``amqp``, ``sqs`` …); no I/O.

    Raises ``InvalidSetting`` where the transport cannot be loaded, as its package is missing or its name is wrong.
    """
    try:
        return str(app.connection_for_write().get_transport_cls().driver_type)
    except ValueError:  # of a URL, whose text shows a piece of it
        raise InvalidSetting(f"broker_url {UNREADABLE}") from None
    except Exception as error:  # kombu passes on whatever the import raised
        raise InvalidSetting(
            f"broker_url: its transport cannot be loaded ({type(error).__name__}: {error}): "
            "correct it, or install the package that it needs"
        ) from error


def open_connection(app: Any) -> Any:
    """Return a kombu ``Connection`` for publishing; it is not connected yet."""
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
    """Return how Sentinels are asked: redis-py asks each ten times over before it turns to the next one."""
    from redis.backoff import NoBackoff  # noqa: PLC0415 - an optional extra
    from redis.retry import Retry  # noqa: PLC0415 - an optional extra

    once = Retry(NoBackoff(), 0)
    return {"socket_timeout": SENTINEL_TIMEOUT_S, "socket_connect_timeout": SENTINEL_TIMEOUT_S, "retry": once}


def close_connection(connection: Any, *, broken: bool) -> None:
    """Close a kombu ``Connection``; of a ``broken`` one only our side, since the broker may not be listening."""
    try:
        if broken:
            connection.collect(socket_timeout=REPLY_TIMEOUT_S)
        else:
            connection.release()
    except Exception as error:
        logger.debug("beat: Closing a connection failed: %r", error)


def is_amqp(connection: Any) -> bool:
    """Say whether confirms and returns exist on this connection."""
    return bool(connection.get_transport_cls().driver_type == "amqp")
