"""One HTTP request and its result. Imports neither Django nor Celery."""

from __future__ import annotations

import http.client
import time
from typing import NamedTuple
from urllib.parse import urlsplit

TIMEOUT_S = 5.0


class Probe(NamedTuple):
    """Result of one request."""

    up: bool
    status: int | None
    latency_ms: int
    error: str


def probe(url: str, timeout_s: float = TIMEOUT_S) -> Probe:
    """GET ``url`` and return whether the status was below 400; never raises for any behaviour of the server."""
    parts = urlsplit(url)
    kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
    if parts.scheme not in kinds or not parts.hostname:
        raise ValueError(f"url {url!r} cannot be checked: expected http://host/path or https://host/path")
    started = time.perf_counter()
    connection = kinds[parts.scheme](parts.hostname, parts.port, timeout=timeout_s)
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers={"User-Agent": "uptime-example"})
        response = connection.getresponse()
        response.read()
    except (OSError, http.client.HTTPException) as error:
        return Probe(up=False, status=None, latency_ms=_since(started), error=str(error) or type(error).__name__)
    finally:
        connection.close()
    up = response.status < 400
    return Probe(up, response.status, _since(started), "" if up else f"HTTP {response.status}")


def _since(started: float) -> int:
    return round((time.perf_counter() - started) * 1000)
