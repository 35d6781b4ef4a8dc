"""The parts of the example project that need neither a database nor a broker."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from services import free_port

from target import Target, is_up
from uptime.probe import probe

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def target_server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Target)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_probe_tells_up_from_down() -> None:
    with target_server() as url:
        fine = probe(f"{url}/ok/1")
        down = probe(f"{url}/down/2")
        gone = probe(f"{url}/hangup/3")
    assert (fine.up, fine.status, fine.error) == (True, 200, "")
    assert (down.up, down.status, down.error) == (False, 503, "HTTP 503")
    assert (gone.up, gone.status) == (False, None)
    assert gone.error


def test_probe_of_a_closed_port_is_down_with_the_reason() -> None:
    found = probe(f"http://127.0.0.1:{free_port()}/")
    assert not found.up
    assert "refused" in found.error


@pytest.mark.parametrize("url", ["ftp://host/", "http:///path", "host/path"])
def test_probe_refuses_what_is_no_web_address(url: str) -> None:
    with pytest.raises(ValueError, match="expected http"):
        probe(url)


def test_flapping_site_is_down_for_a_third_of_its_period() -> None:
    start = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
    for number in ("4", "13", "22"):
        states = [is_up("flap", number, start + second) for second in range(1200)]
        turns = sum(one != other for one, other in pairwise(states))
        assert 0.55 < sum(states) / len(states) < 0.78
        assert turns >= 18
