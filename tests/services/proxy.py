"""A TCP proxy on loopback that a test cuts, stalls, black-holes or lets drip."""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import threading
from enum import Enum
from typing import TYPE_CHECKING, Self

from .server import ServiceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

CHUNK = 65536
TURN_S = 0.02


class Mode(Enum):
    """What the proxy does with bytes."""

    PASS = "pass"
    STALL = "stall"
    """Connections stay open and nothing moves; the bytes arrive after ``pass_through()``."""
    BLACK_HOLE = "black_hole"
    """Bytes of the client are taken and thrown away; nothing comes back."""
    MUTE = "mute"
    """The server gets everything; its answers are thrown away."""
    DRIP = "drip"
    """``drip_bytes`` per turn of 20 ms in each direction."""
    REFUSE = "refuse"
    """New connections are reset."""


class TcpProxy:
    """Forwards ``127.0.0.1:port`` to ``target``. One thread, ended by ``close()``."""

    def __init__(self, target_port: int, target_host: str = "127.0.0.1", *, receive_bytes: int | None = None) -> None:
        """``receive_bytes``: about how much the system takes from a client before the proxy does; else megabytes."""
        self.target = (target_host, target_port)
        self.drip_bytes = 1
        self.tap: Callable[[bytes], None] = lambda _data: None
        """Is given what clients write, as it comes."""
        self._mode = Mode.PASS
        self._orders: queue.SimpleQueue[tuple[Mode, bool, threading.Event]] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._pairs: dict[socket.socket, tuple[socket.socket, bool]] = {}
        self._pending: dict[socket.socket, bytes] = {}
        """Bytes on their way to a socket that does not take them yet; its peer is not read meanwhile."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        if receive_bytes is not None:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, name="tcp-proxy", daemon=True)
        self._thread.start()

    def pass_through(self) -> None:
        """Forward bytes and accept connections again."""
        self._switch(Mode.PASS)

    def stall(self) -> None:
        """Keep every connection open and move nothing."""
        self._switch(Mode.STALL)

    def black_hole(self) -> None:
        """Swallow what the client sends."""
        self._switch(Mode.BLACK_HOLE)

    def mute(self) -> None:
        """Deliver what the client sends and swallow every answer: outcomes become uncertain."""
        self._switch(Mode.MUTE)

    def drip(self, bytes_per_turn: int = 1) -> None:
        """Move ``bytes_per_turn`` bytes each 20 ms."""
        self.drip_bytes = bytes_per_turn
        self._switch(Mode.DRIP)

    def cut(self, *, refuse: bool = False) -> None:
        """Reset every connection now; with ``refuse`` also each new one until ``pass_through()``."""
        self._switch(Mode.REFUSE if refuse else self._mode, cut=True)

    def _switch(self, mode: Mode, *, cut: bool = False) -> None:
        """Let the proxy's thread change its mode between two turns, and wait until it has."""
        done = threading.Event()
        self._orders.put((mode, cut, done))
        if not done.wait(30):
            raise ServiceError(f"the proxy on port {self.port} did not switch to {mode.value}: is it closed?")

    def close(self) -> None:
        """End the proxy and all its connections."""
        self._closing.set()
        self._thread.join(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector, self._listener:
            while not self._closing.is_set():
                self._obey()
                self._accept()
                self._turn(selector)
            self._reset_all()

    def _obey(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._mode, cut, done = self._orders.get_nowait()
                if cut:
                    self._reset_all()
                done.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except BlockingIOError:
                return
            if self._mode is Mode.REFUSE:
                _reset(client)
                continue
            try:
                server = socket.create_connection(self.target, timeout=10)
            except OSError:
                _reset(client)
                continue
            client.setblocking(False)
            server.setblocking(False)
            self._pairs[client] = (server, True)
            self._pairs[server] = (client, False)

    def _turn(self, selector: selectors.BaseSelector) -> None:
        """Move what is there, or wait up to one turn."""
        if self._mode is Mode.STALL or not self._pairs:
            self._closing.wait(TURN_S)
            return
        for one, (peer, _) in self._pairs.items():
            reading = 0 if self._pending.get(peer) else selectors.EVENT_READ
            writing = selectors.EVENT_WRITE if self._pending.get(one) else 0
            if reading | writing:
                selector.register(one, reading | writing)
        ready = [(key.fileobj, events) for key, events in selector.select(TURN_S)]
        for key in list(selector.get_map().values()):
            selector.unregister(key.fileobj)
        for one, events in ready:
            if one in self._pairs and events & selectors.EVENT_WRITE:
                self._flush(one)
            if one in self._pairs and events & selectors.EVENT_READ:
                self._read(one)
        if self._mode is Mode.DRIP:
            self._closing.wait(TURN_S)

    def _read(self, source: socket.socket) -> None:
        peer, from_client = self._pairs[source]
        try:
            data = source.recv(self.drip_bytes if self._mode is Mode.DRIP else CHUNK)
        except OSError:
            data = b""
        if from_client:
            self.tap(data)
        if not data:
            self._drop(source)
        elif self._mode is Mode.PASS or self._mode is Mode.DRIP or (self._mode is Mode.MUTE and from_client):
            self._pending[peer] = data
            self._flush(peer)

    def _flush(self, target: socket.socket) -> None:
        try:
            self._pending[target] = self._pending[target][target.send(self._pending[target]) :]
        except BlockingIOError:
            return
        except OSError:
            self._drop(target)

    def _drop(self, source: socket.socket) -> None:
        peer, _ = self._pairs.pop(source)
        self._pairs.pop(peer, None)
        for one in (source, peer):
            self._pending.pop(one, None)
            one.close()

    def _reset_all(self) -> None:
        for one in list(self._pairs):
            _reset(one)
        self._pairs.clear()
        self._pending.clear()


def _reset(connection: socket.socket) -> None:
    """Close with RST, as a dying host's kernel would."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    connection.close()
