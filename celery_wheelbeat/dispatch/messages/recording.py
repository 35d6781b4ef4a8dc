"""Records the bytes of one message that Celery makes, instead of sending them.

The last step before the wire is replaced on one channel object; everything before it, declarations included, is
Celery's and kombu's own code. Nothing is published here. The channel is restored afterwards.
"""

from __future__ import annotations

import struct
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import amqp.spec
from amqp.method_framing import frame_writer
from amqp.serialization import dumps as dump_arguments

from celery_wheelbeat.dispatch.messages.template import Uncut, Unsendable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ANYWHERE = "wheelbeat:anywhere"
"""Queue to which a message is recorded where its routing key is invented and leads nowhere."""
_MISSING = object()
_PREPARED = ("body", "priority", "content_type", "content_encoding", "headers", "properties")


class Recording(NamedTuple):
    """One message as Celery made it."""

    wire: bytes
    """Redis: the value of the list; AMQP: method, header and body frames."""
    key: bytes
    """Redis: the key of the list, prefixed; AMQP: the exchange."""
    queue: str
    """Redis: the queue to which the list belongs, or ``ANYWHERE``. Empty on AMQP."""
    exchange: str
    routing_key: str
    body: bytes
    """Serialized and compressed."""
    content_type: str
    content_encoding: str
    headers: dict[str, Any]
    properties: dict[str, Any]
    delivery_tag: str
    """Empty on AMQP."""


class _Taken(NamedTuple):
    body: Any
    content_type: str
    content_encoding: str
    headers: dict[str, Any]
    properties: dict[str, Any]


@contextmanager
def _dressed(target: Any, **attributes: Any) -> Iterator[None]:
    """Set attributes of an instance inside the context; its class is not changed."""
    before = {name: target.__dict__.get(name, _MISSING) for name in attributes}
    target.__dict__.update(attributes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is _MISSING:
                del target.__dict__[name]
            else:
                target.__dict__[name] = value


@contextmanager
def undeclared(producer: Any, queues: Any, queue: str) -> Iterator[None]:
    """Let a message to an invented ``queue`` be recorded: the broker and ``app.amqp.queues`` do not get that queue."""
    try:
        with _dressed(producer, maybe_declare=lambda *_args, **_kwargs: False):
            yield
    finally:
        queues.pop(queue, None)


@contextmanager
def _prepared(channel: Any) -> Iterator[list[_Taken]]:
    """Record the arguments of ``prepare_message``: the serialized body, headers and properties."""
    taken: list[_Taken] = []
    prepare = channel.prepare_message

    def prepare_message(*given: Any, **named: Any) -> Any:
        values = dict(zip(_PREPARED, given, strict=False)) | named
        taken.append(
            _Taken(
                values["body"],
                values.get("content_type") or "",
                values.get("content_encoding") or "utf-8",
                dict(values.get("headers") or {}),
                dict(values.get("properties") or {}),
            )
        )
        return prepare(*given, **named)

    with _dressed(channel, prepare_message=prepare_message):
        yield taken


def record_redis(channel: Any, publish: Callable[[], Any], *, anywhere: bool = False) -> Recording:
    """Call ``publish``, which sends one message on ``channel`` (kombu, Redis), and return the value it would push.

    Raises ``Uncut`` unless it is exactly one push to one list. ``anywhere``: a message to a named exchange is recorded
    for the queue ``ANYWHERE``, whatever its routing key.
    """
    pushed: list[tuple[str, str | bytes]] = []
    messages: list[tuple[str, Any]] = []
    put, lookup = channel._put, channel._lookup

    class _Client:
        """Replaces the redis-py client while one message is put into a queue."""

        @staticmethod
        def lpush(key: str, value: str | bytes) -> None:
            pushed.append((key, value))

    @contextmanager
    def no_connection(_client: Any = None) -> Iterator[_Client]:
        yield _Client()

    def record_put(queue: str, message: Any, **kwargs: Any) -> None:
        if queue in (getattr(channel, "_expires", None) or ()):  # kombu 5.5 has no expiring queues
            raise Uncut(f"the queue {queue!r} expires, which takes further commands")
        messages.append((queue, message))
        with _dressed(channel, conn_or_acquire=no_connection):
            put(queue, message, **kwargs)

    def find_any(exchange: str, routing_key: str, default: Any = None) -> Any:
        return [ANYWHERE] if anywhere and exchange else lookup(exchange, routing_key, default)

    def record_fanout(exchange: str, *_args: Any, **_kwargs: Any) -> None:
        raise Uncut(f"the exchange {exchange!r} is a fanout")

    with ExitStack() as stack:
        taken = stack.enter_context(_prepared(channel))
        stack.enter_context(_dressed(channel, _put=record_put, _put_fanout=record_fanout, _lookup=find_any))
        publish()
    if len(pushed) != 1 or len(taken) != 1:
        raise Uncut(f"it goes to {len(pushed)} lists at once, expected one")
    ((key, value),), ((queue, message),) = pushed, messages
    properties = message["properties"]
    return Recording(
        wire=value.encode() if isinstance(value, str) else value,
        key=(channel.global_keyprefix + key).encode(),
        queue=queue,
        exchange=properties["delivery_info"]["exchange"],
        routing_key=properties["delivery_info"]["routing_key"],
        body=_octets(taken[0].body),
        content_type=taken[0].content_type,
        content_encoding=taken[0].content_encoding,
        headers=taken[0].headers,
        properties=properties,
        delivery_tag=properties["delivery_tag"],
    )


def record_amqp(channel: Any, publish: Callable[[], Any], *, channel_id: int) -> Recording:
    """Call ``publish``, which sends one message on ``channel`` (py-amqp), and return its frames for ``channel_id``."""
    frames: list[bytes] = []
    sent: list[tuple[str, str]] = []

    class _Transport:
        @staticmethod
        def write(data: Any) -> None:
            frames.append(bytes(data))

    class _Connection:
        frame_max = channel.connection.frame_max
        bytes_sent = 0

    def basic_publish(
        message: Any,
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        immediate: bool = False,
        **_kwargs: Any,
    ) -> None:
        sent.append((exchange, routing_key))
        try:
            arguments = dump_arguments("Bssbb", (0, exchange, routing_key, mandatory, immediate))
            frame_writer(_Connection, _Transport)(1, channel_id, amqp.spec.Basic.Publish, arguments, message)
        except struct.error as error:
            raise Unsendable(
                f"a name or a number of its message is too large for AMQP ({error}): exchange, routing key, names of"
                " headers and properties have 255 bytes at most"
            ) from error

    with _prepared(channel) as taken, _dressed(channel, basic_publish=basic_publish):
        publish()
    if len(sent) != 1 or len(taken) != 1:
        raise Uncut(f"it is not one message but {len(sent)}")
    return Recording(
        wire=b"".join(frames),
        key=sent[0][0].encode(),
        queue="",
        exchange=sent[0][0],
        routing_key=sent[0][1],
        body=_octets(taken[0].body),
        content_type=taken[0].content_type,
        content_encoding=taken[0].content_encoding,
        headers=taken[0].headers,
        properties=taken[0].properties,
        delivery_tag="",
    )


def _octets(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(body)
