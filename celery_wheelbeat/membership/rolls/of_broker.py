"""Connections of rolls to the broker, with the app's own parameters and other time-outs.

kombu's own ``connect`` waits two seconds before a second attempt; a roll tries each broker of ``broker_url`` once.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def redis_connection(open_broker: Callable[[], Any], wait_s: float) -> Any:
    """Return a connection of redis-py to the broker, outside of kombu's pool.

    ``open_broker()`` returns a kombu ``Connection`` that is not connected; it is used up here.
    """
    kombu = open_broker()
    bounds = {"socket_timeout": wait_s, "socket_connect_timeout": wait_s, "retry_on_timeout": False}
    kombu.transport_options = {**(kombu.transport_options or {}), **bounds}
    made = _established(kombu)
    try:
        connection = kombu.transport.create_channel(made).pool.make_connection()
        connection.connect()
    finally:
        with suppress(Exception):  # only our own connection is kept
            kombu.transport.close_connection(made)
    return connection


def amqp_connection(open_broker: Callable[[], Any], wait_s: float) -> Any:
    """Return a connected ``amqp.Connection`` to the broker, without publisher confirms."""
    kombu = open_broker()
    bounds = {"connect_timeout": wait_s, "read_timeout": wait_s, "write_timeout": wait_s}
    kombu.transport_options = {**(kombu.transport_options or {}), **bounds, "confirm_publish": False}
    return _established(kombu)


def _established(kombu: Any) -> Any:
    """Connect to the first broker of ``broker_url`` that answers; raises what the last one did."""
    others = len(kombu.alt or ()) - 1
    while True:
        try:
            return kombu.transport.establish_connection()
        except Exception:
            if others <= 0:
                raise
            others -= 1
            kombu.maybe_switch_next()
