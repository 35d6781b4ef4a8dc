"""Trial: asks RabbitMQ whether it would take a message, without sending it.

The message is published in a transaction that is rolled back, on a connection of its own. What the broker refuses (an
exchange that is not there or may not be written to, a property that is not allowed) closes that connection or its
channel, and not the one that publishes, where it would take everything that is on its way along. Whatever else goes
wrong says nothing about the message.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import amqp.exceptions

from celery_wheelbeat.errors import reason_of
from celery_wheelbeat.publishers.broker import close_connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_wheelbeat.publishers.capture import Recording

logger = logging.getLogger("celery.beat")

_FRAME_EXTRA = 8
"""Octets of a frame beside its payload: type, channel, size and end."""


def refusal_of(recording: Recording, open_connection: Callable[[], Any]) -> str:
    """Return why the broker would not take the message; empty where it would, or where it cannot be asked."""
    kombu = open_connection()
    selected = False
    try:
        kombu.connect()
        channel = kombu.connection.channel()
        channel.tx_select()
        selected = True
        kombu.connection.transport.write(on_channel(recording.wire, channel.channel_id))
        channel.tx_rollback()
    except amqp.exceptions.AMQPError as error:
        close_connection(kombu, broken=True)
        if selected and error.method_sig is not None:  # the broker's own word
            return reason_of(error)
        logger.debug("beat: A message to %s could not be tried: %r", recording.exchange, error)
        return ""
    except Exception as error:
        close_connection(kombu, broken=True)
        logger.debug("beat: A message to %s could not be tried: %r", recording.exchange, error)
        return ""
    close_connection(kombu, broken=False)
    return ""


def on_channel(frames: bytes, channel_id: int) -> bytes:
    """Return ``frames`` for another channel."""
    moved, start = bytearray(frames), 0
    while start < len(moved):
        moved[start + 1 : start + 3] = channel_id.to_bytes(2, "big")
        start += _FRAME_EXTRA + int.from_bytes(moved[start + 3 : start + 7], "big")
    return bytes(moved)
