"""Keeps messages that RabbitMQ refuses off the channel of the celery lane.

RabbitMQ answers such a message by closing the channel, or the connection, and runs around it have to be sent again. So
a message is checked at the last moment, when Celery has declared its queue: its headers must fit into a frame, and a
named exchange is tried on a connection of its own. Only the lane's thread calls the guard. It never changes a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import amqp
import amqp.exceptions
from amqp.serialization import dumps as dump_arguments

from celery_wheelbeat.dispatch.broker import refusal_in_trial

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_wheelbeat.runtime.clock import Clock

REFUSED_S = 60.0
"""For so long no message goes to an exchange that was refused; then it is tried again."""
EXCHANGES_MAX = 1_000
"""Most exchanges whose trial is remembered; all are forgotten when there are more."""
_FRAME_EXTRA = 8
_CONTENT_HEADER = 14
"""Bytes before the properties: class, weight, size of the body, flags."""
_GROWTH_MAX = 10
"""AMQP takes at most this many bytes for one character of the text of a dictionary."""


class Trial(NamedTuple):
    """The result of a trial."""

    refusal: str
    """Empty if the exchange accepts messages."""
    until_s: float
    """Monotonic time until which a refusal counts."""


class AmqpGuard:
    """Checks messages; see the module."""

    def __init__(self, open_connection: Callable[[], Any], clock: Clock) -> None:
        self._open_connection = open_connection
        self._clock = clock
        self._trials: dict[str, Trial] = {}
        """By exchange."""

    def watch(self, channel: Any) -> None:
        """Check each message that is published on ``channel``, a new one of py-amqp.

        Exchanges that accepted messages are tried again: one of them may be why the former channel was closed.
        """
        self._trials = {exchange: trial for exchange, trial in self._trials.items() if trial.refusal}
        publish, most_octets = channel.basic_publish, channel.connection.frame_max - _FRAME_EXTRA

        def publish_checked(message: Any, exchange: str = "", routing_key: str = "", **options: Any) -> Any:
            _check_size(message.properties, most_octets)
            if exchange:
                self._check_exchange(exchange, routing_key)
            return publish(message, exchange=exchange, routing_key=routing_key, **options)

        channel.basic_publish = publish_checked

    def _check_exchange(self, exchange: str, routing_key: str) -> None:
        """Raise ``NotFound`` without a method, so that the channel counts as sound, if the exchange is refused."""
        now_s = self._clock.monotonic_s()
        trial = self._trials.get(exchange)
        if trial is None or (trial.refusal and now_s >= trial.until_s):
            if len(self._trials) >= EXCHANGES_MAX:
                self._trials.clear()

            def write(channel: Any) -> None:
                channel.basic_publish(amqp.Message(b""), exchange=exchange, routing_key=routing_key)

            trial = self._trials[exchange] = Trial(refusal_in_trial(write, self._open_unconfirmed), now_s + REFUSED_S)
        if trial.refusal:
            raise amqp.exceptions.NotFound(trial.refusal)

    def _open_unconfirmed(self) -> Any:
        """Open a connection without publisher confirms, which a channel cannot combine with transactions."""
        connection = self._open_connection()
        connection.transport_options.pop("confirm_publish", None)
        return connection


def _check_size(properties: dict[str, Any], most_octets: int) -> None:
    """Raise ``ContentTooLarge`` if the properties do not fit into one frame."""
    headers = properties.get("application_headers") or {}
    if _GROWTH_MAX * len(repr(headers)) < most_octets:
        return
    octets = _CONTENT_HEADER + len(dump_arguments("F", (headers,)))
    octets += sum(1 + len(value.encode()) if isinstance(value, str) else 1 for value in properties.values())
    if octets > most_octets:
        raise amqp.exceptions.ContentTooLarge(
            f"its headers and properties have {octets:,} bytes: RabbitMQ takes no more than {most_octets:,} and ends"
            " the connection with more"
        )
