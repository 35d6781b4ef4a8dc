"""Writes to a broker's socket in turns, so that a slow line is told from a dead one.

All of what is given is written or an exception says that the connection is of no use any more. It never decides how
long to wait: whoever writes is told how long nothing has moved.
"""

from __future__ import annotations

import fcntl
import ssl
import struct
import termios
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from celery_wheelbeat.runtime.clock import Clock

TURN_S = 0.2
"""A write that moves nothing for this long is interrupted."""
TLS_WRITE_BYTES = 65_536
"""Most of one write over TLS, which takes all of what it is given or says nothing."""


def write_in_turns(
    sock: socket.socket, data: bytes | memoryview, clock: Clock, on_wait: Callable[[float], None]
) -> None:
    """Write all of ``data``: never by halves, because the other side reads the rest whenever it goes on.

    While nothing moves, ``on_wait`` is called with the seconds since the last byte; what it raises ends the write.
    """
    left = memoryview(data)
    most = TLS_WRITE_BYTES if isinstance(sock, ssl.SSLSocket) else len(data)
    moved_s = clock.monotonic_s()
    before = sock.gettimeout()
    sock.settimeout(TURN_S)
    try:
        while left:
            try:
                left = left[sock.send(left[:most]) :]  # after a time-out the same again, as TLS wants
                moved_s = clock.monotonic_s()
            except TimeoutError:
                on_wait(clock.monotonic_s() - moved_s)
    finally:
        sock.settimeout(before)


def unacknowledged_bytes(sock: socket.socket) -> int:
    """Return how much of what was written has not reached the other host; 0 where the system does not say."""
    with suppress(OSError, ValueError):
        return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))[0])
    return 0
