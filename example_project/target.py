"""The server that the demo checks: sites that are up, slow, down, hang up, or flap. Standard library only.

``/ok/7  /slow/7  /down/7  /hangup/7  /flap/7``: each number is a separate site. A flapping site is down for a third of
its period of 45 to 120 seconds.
"""

from __future__ import annotations

import sys
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def is_up(behaviour: str, number: str, now_s: float) -> bool:
    """Whether the site is up at ``now_s``; a pure function, so every process sees the same outages."""
    if behaviour != "flap":
        return behaviour in ("ok", "slow")
    digest = zlib.crc32(number.encode())
    period_s = 45 + digest % 76
    return (now_s + digest) % period_s >= period_s / 3


class Target(BaseHTTPRequestHandler):
    """Answers GET requests."""

    def do_GET(self) -> None:
        _, behaviour, number = f"{self.path}//".split("/")[:3]
        digest = zlib.crc32(f"{self.path}{time.time_ns()}".encode())
        time.sleep((0.2 + digest % 500 / 1000) if behaviour == "slow" else 0.003 + digest % 30 / 1000)
        if behaviour == "hangup":
            self.close_connection = True
            return
        up = is_up(behaviour, number, time.time())
        body = f"{behaviour} {number}: {'fine' if up else 'out of order'}\n".encode()
        self.send_response(200 if up else 503)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Log nothing: one line per check would flood the demo's log."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Target).serve_forever()
