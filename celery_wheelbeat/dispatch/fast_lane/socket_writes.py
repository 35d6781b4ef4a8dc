"""Socket writes with progress detection, which distinguishes a slow connection from a dead one.

A call writes all of its data, or raises, and then the connection is unusable. The caller decides how long to wait: it
is passed the time since the last progress.
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
"""A ``send`` without progress for this long is interrupted."""
TLS_WRITE_BYTES = 65_536
"""Most bytes of one TLS write, which reports no partial progress."""


def write_in_turns(
    sock: socket.socket, data: bytes | memoryview, clock: Clock, on_wait: Callable[[float], None]
) -> None:
    """Write all of ``data``; a partial write would be completed by the next bytes on the connection.

    Without progress, ``on_wait`` is called with the seconds since the last byte; its exception ends the write.
    """
    left = memoryview(data)
    most = TLS_WRITE_BYTES if isinstance(sock, ssl.SSLSocket) else len(data)
    moved_s = clock.monotonic_s()
    before = sock.gettimeout()
    sock.settimeout(TURN_S)
    try:
        while left:
            try:
                left = left[sock.send(left[:most]) :]  # TLS requires the same data again after a time-out
                moved_s = clock.monotonic_s()
            except TimeoutError:
                on_wait(clock.monotonic_s() - moved_s)
    finally:
        sock.settimeout(before)


def unacknowledged_bytes(sock: socket.socket) -> int:
    """Return the bytes written that the other host has not acknowledged; 0 if the system cannot tell."""
    with suppress(OSError, ValueError):
        return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))[0])
    return 0
