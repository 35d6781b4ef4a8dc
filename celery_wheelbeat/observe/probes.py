"""HTTP port of one beat for probes and scrapers: ``/livez``, ``/readyz``, ``/metrics``, ``/status``.

The thread ``wheelbeat-http`` only reads the last ``HealthView`` of the scheduling thread; its own health never matters
for the answers. No failure here (a port in use, a client that does not read) stops a run. Connections are bounded in
number and duration.
"""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from celery_wheelbeat.observe.health import alive, ready
from celery_wheelbeat.observe.host_header import is_known
from celery_wheelbeat.runtime.clock import SystemClock
from celery_wheelbeat.runtime.owned_thread import OwnedThread, ThreadBody

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from urllib.parse import SplitResult

    from celery_wheelbeat.observe.health import Check, HealthView

logger = logging.getLogger("celery.beat")

CONNECTIONS_MAX = 16
"""Maximum of concurrent connections; one more is closed without an answer, to bound the number of threads."""
CLIENT_S = 5.0
"""A client that neither sends nor reads for this long is dropped."""
CONNECTION_S = 15.0
"""Maximum duration of a connection: a client that sends a byte now and then must not hold its thread."""
BIND_AGAIN_S = 5.0
"""Pause between attempts to bind a port in use: the previous beat may still be stopping."""
_POLL_S = 0.5
_TEXT = "text/plain; charset=utf-8"
_OTHER_HOST = b"The name in the header Host is not known here: add it to wheelbeat_http_hosts, or ask the address.\n"
_NO_METRICS = "The metrics need prometheus_client: pip install 'celery-wheelbeat[prometheus]', then restart the beat.\n"


class HttpAnswer(NamedTuple):
    """One response."""

    status: int
    body: bytes
    content_type: str = _TEXT


class ProbeAnswers:
    """The responses of each path."""

    def __init__(
        self,
        health: Callable[[], HealthView],
        monotonic_s: Callable[[], float],
        timeout_s: float,
        hosts: Sequence[str] = (),
    ) -> None:
        """``health`` returns the beat's last ``HealthView``; ``monotonic_s`` is the clock of its stamps.

        ``hosts``: patterns of host names that clients may use.
        """
        self._hosts = hosts
        self._health = health
        self._monotonic_s = monotonic_s
        self._timeout_s = timeout_s
        self._render = _exposition(lambda: health().status)

    def of(self, target: str, accept: str, hosts: Sequence[str] = ()) -> HttpAnswer:
        """Answer GET ``target`` (path and query), given the headers ``Accept`` and ``Host``."""
        parts = urlsplit(target)
        named = [*hosts, parts.netloc] if parts.netloc else hosts
        if not all(is_known(host, self._hosts) for host in named):
            return HttpAnswer(421, _OTHER_HOST)
        return self._of_path(parts, accept)

    def _of_path(self, parts: SplitResult, accept: str) -> HttpAnswer:
        verbose = "verbose" in parse_qs(parts.query, keep_blank_values=True)
        if parts.path == "/livez":
            return _checked(alive(self._health(), self._monotonic_s(), self._timeout_s), verbose=verbose)
        if parts.path == "/readyz":
            return _checked(ready(self._health(), self._monotonic_s(), self._timeout_s), verbose=verbose)
        if parts.path == "/metrics":
            return (
                HttpAnswer(501, _NO_METRICS.encode())
                if self._render is None
                else HttpAnswer(200, *self._render(accept))
            )
        if parts.path == "/status":
            status = self._health().status
            if not status:
                return HttpAnswer(503, b"no status yet\n")
            return HttpAnswer(200, json.dumps(dict(status)).encode(), "application/json")
        return HttpAnswer(404, b"here are /livez, /readyz, /metrics and /status\n")


class Probes:
    """The HTTP thread. The scheduling thread calls ``start`` and ``close``."""

    def __init__(self, host: str, port: int, answers: ProbeAnswers) -> None:
        self._address = (host, port)
        self._handler = type("Handler", (_Handler,), {"answers": answers})
        self._server: _Server | None = None
        self._warned = False
        body = ThreadBody(self._turn, end=self._free_port, interrupt=self._wake)
        self._thread = OwnedThread("wheelbeat-http", SystemClock(), body)

    def start(self) -> None:
        """Start listening, in the process that schedules, after any fork."""
        self._thread.start()

    def close(self) -> None:
        """Close the port, within a second."""
        self._thread.close(2 * _POLL_S)

    def _wake(self) -> None:
        if self._server is not None:
            with suppress(OSError):  # wakes the thread on Linux; elsewhere it polls
                self._server.socket.shutdown(socket.SHUT_RDWR)

    def _turn(self) -> float:
        if self._server is None:
            self._server = self._bind()
            if self._server is None:
                return BIND_AGAIN_S
            logger.info("beat: Probes and metrics on %s port %d", *self._address)
        self._server.handle_request()
        self._server.drop_late()
        return 0.0

    def _free_port(self) -> None:
        if self._server is not None:
            self._server.server_close()

    def _bind(self) -> _Server | None:
        """Return a listening server; None while the port is in use."""
        try:
            return _Server(self._address, self._handler)
        except OSError as error:
            if not self._warned:
                logger.warning(
                    "beat: Cannot listen on wheelbeat_http_host %s, wheelbeat_http_port %d (%s): no probes and "
                    "metrics until the port is free; runs are not affected. Each beat of a host needs its own port",
                    *self._address,
                    error,
                )
            self._warned = True
            return None


class _Server(ThreadingMixIn, TCPServer):
    """Bind without the name-service query of ``http.server.HTTPServer``."""

    allow_reuse_address = True
    request_queue_size = CONNECTIONS_MAX
    daemon_threads = True
    block_on_close = False
    timeout = _POLL_S

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._monotonic_s = SystemClock().monotonic_s
        self._begun_s: dict[Any, float] = {}
        """Open connections and the monotonic instants of their begin."""
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._begun_s[request] = self._monotonic_s()
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # cannot start a thread
            self._forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def drop_late(self) -> None:
        """Close connections that have lasted too long; their threads then end."""
        late_s = self._monotonic_s() - CONNECTION_S
        for request, begun_s in self._begun_s.copy().items():
            if begun_s < late_s:
                with suppress(OSError):  # it has ended meanwhile
                    request.shutdown(socket.SHUT_RDWR)

    def _forget(self, request: Any) -> None:
        del self._begun_s[request]
        self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the signature is socketserver's
        logger.debug("beat: An HTTP request from %s failed: %r", client_address, sys.exception())


class _Handler(BaseHTTPRequestHandler):
    answers: ProbeAnswers
    timeout = CLIENT_S
    server_version = "celery-wheelbeat"
    sys_version = ""

    def do_GET(self) -> None:
        try:
            answer = self.answers.of(self.path, self.headers.get("Accept", ""), self.headers.get_all("Host", []))
        except Exception:
            logger.exception("beat: The answer to GET %r failed", self.path)
            answer = HttpAnswer(500, b"see the log of the beat\n")
        with suppress(OSError):  # the client has disconnected
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

    do_HEAD = do_GET  # noqa: N815 - the name is http.server's

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is http.server's
        logger.debug(f"beat: HTTP {format}", *args)  # noqa: G004


def _checked(checks: Sequence[Check], *, verbose: bool) -> HttpAnswer:
    failed = [check for check in checks if not check.good]
    shown = checks if verbose else failed
    lines = [f"[{'+' if check.good else '-'}] {check.name}: {check.detail}" for check in shown]
    lines.append("failed" if failed else "ok")
    return HttpAnswer(503 if failed else 200, ("\n".join(lines) + "\n").encode())


def _exposition(status: Callable[[], Any]) -> Callable[[str], tuple[bytes, str]] | None:
    """Return the renderer of the metrics; None without the extra ``prometheus``."""
    try:
        from celery_wheelbeat.observe.prometheus import Exposition  # noqa: PLC0415 - optional
    except ImportError:
        return None
    return Exposition(status).render
