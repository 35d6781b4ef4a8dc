"""A roll on RabbitMQ: each beat says its line to a fanout exchange and hears the others through a queue of its own.

Nothing is stored: a beat that has just come hears the others within one of their heartbeats, so it listens that long
before its first answer. The roll can be read if the beat's own line comes back. Exchange and queues end with the beats.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import amqp

from celery_wheelbeat.errors import RollDown, reason_of
from celery_wheelbeat.membership import Heard, Peer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

MESSAGE_TTL_MS: Final = 5_000
QUEUE_LENGTH: Final = 1_000
LINES_MAX: Final = 256
"""The lines that were heard last are kept."""


class _AmqpLine(NamedTuple):
    order: int
    counter: int
    at_s: float
    text: str


class AmqpRoll:
    """``Roll`` over a fanout exchange ``wheelbeat.<namespace>``."""

    def __init__(
        self,
        connect: Callable[[], amqp.Connection],
        namespace: str,
        beat_id: str,
        *,
        started_ms: int,
        wait_s: float,
        listen_s: float,
    ) -> None:
        """``connect()`` opens a connection whose waits are bounded by ``wait_s``.

        ``started_ms`` is the seniority. ``listen_s``: a heartbeat and a half; the first answer comes after it.
        """
        self._connect = connect
        self._exchange = f"wheelbeat.{namespace}"
        self._beat_id = beat_id
        self._started_ms = started_ms
        self._wait_s = wait_s
        self._listen_s = listen_s
        self._counter = self._returned = 0
        self._lines: dict[str, _AmqpLine] = {}
        self._connection: Any = None
        self._channel: Any = None

    def beat(self, text: str) -> Heard:
        """See ``Roll``; ``age_s`` is counted from the look that found the line."""
        with self._errors():
            try:
                self._exchange_lines(text)
            except amqp.NotFound:  # the exchange was deleted
                self.close()
                self._exchange_lines(text)
        now_s = time.monotonic()
        peers = [
            Peer(beat_id, line.order, line.counter, now_s - line.at_s, line.text)
            for beat_id, line in self._lines.items()
        ]
        return Heard(peers, self._started_ms, None)

    def leave(self, text: str) -> None:
        """See ``Roll``."""
        with self._errors():
            self._exchange_lines(text)

    def fence(self, beat_id: str) -> bool:  # noqa: ARG002 - RabbitMQ ends connections by its management interface only
        """See ``Roll``."""
        return False

    def forget(self, beat_ids: Collection[str]) -> None:
        """See ``Roll``: each beat forgets for itself."""
        for beat_id in beat_ids:
            self._lines.pop(beat_id, None)

    def close(self) -> None:
        """See ``Roll``."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # the connection is discarded
                connection.collect()

    def listen(self) -> None:
        """Connect, and hear from now on what others say."""
        self._connection = connection = self._connect()
        self._channel = channel = connection.channel()
        channel.exchange_declare(self._exchange, "fanout", durable=False, auto_delete=True)
        arguments = {"x-message-ttl": MESSAGE_TTL_MS, "x-max-length": QUEUE_LENGTH}
        queue = channel.queue_declare("", exclusive=True, auto_delete=True, durable=False, arguments=arguments).queue
        channel.queue_bind(queue, self._exchange)
        channel.basic_consume(queue, no_ack=True, callback=self._take)
        until_s = time.monotonic() + self._listen_s
        self._listen_s = 0.0
        while (rest_s := until_s - time.monotonic()) > 0:
            with suppress(TimeoutError):
                connection.drain_events(timeout=rest_s)

    def _exchange_lines(self, text: str) -> None:
        """Publish the line, and take those of others, until it has come back."""
        if self._connection is None:
            self.listen()
        self._counter += 1
        headers = {"beat": self._beat_id, "order": self._started_ms, "counter": self._counter}
        message = amqp.Message(text, application_headers=headers, delivery_mode=1, content_encoding="utf-8")
        self._channel.basic_publish(message, self._exchange)
        until_s = time.monotonic() + self._wait_s
        while self._returned != self._counter:
            rest_s = until_s - time.monotonic()
            if rest_s <= 0:
                raise TimeoutError(f"no answer within {self._wait_s:g} s")
            self._connection.drain_events(timeout=rest_s)

    def _take(self, message: Any) -> None:
        headers = message.headers or {}
        beat_id, order, counter = headers.get("beat"), headers.get("order"), headers.get("counter")
        if not (isinstance(beat_id, str) and type(order) is int and type(counter) is int):
            return  # no beat says such a thing
        if beat_id == self._beat_id:
            self._returned = counter
            return
        body = message.body if isinstance(message.body, str) else bytes(message.body).decode(errors="replace")
        self._lines.pop(beat_id, None)
        self._lines[beat_id] = _AmqpLine(order, counter, time.monotonic(), body)
        if len(self._lines) > LINES_MAX:
            del self._lines[next(iter(self._lines))]

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.close()
            hint = f" (its user needs configure, write and read on {self._exchange} and amq.gen*)"
            refused = hint if isinstance(error, amqp.AccessRefused) else ""
            raise RollDown(f"roll on RabbitMQ: {reason_of(error)}{refused}") from error
