"""A line to Redis or Valkey: the protocol over the socket of a redis-py connection.

redis-py connects (addresses, TLS, Sentinel, credentials). Commands and answers are written and read here, because
redis-py's client and buffers cost a claim more than the server does. No call waits longer than the socket's time-out.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import InvalidResponse, NoScriptError, ResponseError

if TYPE_CHECKING:
    from celery_wheelbeat.worker.stores.connection import Losses

READ_BYTES = 4_096
_NOTHING, _ONE = b"$-1\r\n", b":1\r\n"
"""The most frequent answers to claims and marks, recognised without parsing."""


class RedisLine:
    """One connection (protocol version 2 or 3) and the number of its unread answers.

    ``prelude``: a command on which posted commands depend (it loads their script). It is sent first, and again if the
    server has lost the script.
    """

    def __init__(self, connection: Any, losses: Losses, prelude: bytes) -> None:
        self._connection = connection
        self._socket = connection._sock  # redis-py has no public name for it
        self._descriptor = _descriptor_of(self._socket)
        self._losses = losses
        self._prelude = prelude
        self._prepared = False
        self._unread = b""
        self._owed = 0

    def ask(self, command: bytes) -> Any:
        """Send a command and return its answer; raises ``ResponseError`` for an error reply."""
        answer = self.hear(command)
        if isinstance(answer, ResponseError):
            raise answer
        return answer

    def hear(self, command: bytes) -> Any:
        """Send a command and return its answer, which is a ``ResponseError`` for an error reply."""
        self._send(command)
        while self._owed:
            self._hear_owed()
            self._owed -= 1
        if not self._unread:
            self._receive()
        if self._unread == _NOTHING:
            self._unread = b""
            return None
        return self._answer()

    def post(self, command: bytes) -> None:
        """Send a command whose answer is read before that of the next one."""
        if not self._prepared:
            self.ask(self._prelude)
            self._prepared = True
        self._send(command)
        self._owed += 1

    def close(self) -> None:
        """Close the connection."""
        self._losses.add(self._owed)
        self._owed = 0
        self._descriptor = None
        self._connection.disconnect()

    def _send(self, command: bytes) -> None:
        sent = 0
        if self._descriptor is not None:
            try:
                sent = os.write(self._descriptor, command)
            except BlockingIOError:
                sent = 0
        if sent < len(command):
            self._socket.sendall(command[sent:])

    def _hear_owed(self) -> None:
        if not self._unread and self._descriptor is not None:
            try:  # it has usually arrived by now
                self._unread = os.read(self._descriptor, READ_BYTES)
            except BlockingIOError:
                self._receive()
        elif not self._unread:
            self._receive()
        if self._unread.startswith(_ONE):
            self._unread = self._unread[len(_ONE) :]
        elif isinstance(answer := self._answer(), ResponseError):
            self._losses.add(1)
            self._prepared = self._prepared and not isinstance(answer, NoScriptError)

    def _answer(self) -> Any:
        while (end := self._unread.find(b"\r\n")) < 0:
            self._receive()
        head, self._unread = self._unread[:end], self._unread[end + 2 :]
        kind, rest = head[:1], head[1:]
        answer: Any = None  # as for "_", the null of RESP3
        match kind:
            case b"$" | b"=":
                answer = self._text(int(rest))
            case b":":
                answer = int(rest)
            case b"+":
                answer = rest
            case b"*":
                answer = [self._answer() for _ in range(int(rest))]
            case b"-":
                error = NoScriptError if rest.startswith(b"NOSCRIPT") else ResponseError
                answer = error(rest.decode(errors="replace"))
            case b">":  # push messages of the server, e.g. about its maintenance
                for _ in range(int(rest)):
                    self._answer()
                answer = self._answer()
            case other if other != b"_":
                raise InvalidResponse(f"{head!r} is not a Redis reply")
        return answer

    def _text(self, length: int) -> bytes | None:
        if length < 0:
            return None
        while len(self._unread) < length + 2:
            self._receive()
        text, self._unread = self._unread[:length], self._unread[length + 2 :]
        return text

    def _receive(self) -> None:
        received = self._socket.recv(READ_BYTES)
        if not received:
            raise Disconnected("the server has closed the connection")
        self._unread += received


def _descriptor_of(socket: Any) -> int | None:
    """Return the file descriptor of ``socket``; None with TLS or greenlets.

    A Python socket with a time-out polls before each operation, although a worker's writes nearly always succeed at
    once. With the descriptor, the operation is tried first; only the socket waits, with its time-out.
    """
    plain = os.name == "posix" and type(socket).__module__ == "socket" and socket.gettimeout()
    return int(socket.fileno()) if plain else None


def packed(*words: bytes) -> bytes:
    """Encode a command in the protocol."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        parts += (b"$%d\r\n" % len(word), word, b"\r\n")
    return b"".join(parts)
