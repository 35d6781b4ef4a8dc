"""The HTTP port: what each path answers at times that the test chooses; a port that is taken, flooded, given back."""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from services import free_port

from celery_wheelbeat.beat.scheduler import WheelScheduler
from celery_wheelbeat.observe import probes
from celery_wheelbeat.observe.health import LAG_LIMIT_S, HealthView, ready
from celery_wheelbeat.observe.probes import CONNECTIONS_MAX, ProbeAnswers, Probes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WAIT_S = 120.0
NOW_S = 1_000.0
STATUS: dict[str, Any] = {
    "state": "running",
    "behind_s": 0.0,
    "destinations": {"broker": {"connected": True, "last_error": ""}},
    "source": {"kind": "sqlite", "lag_s": 0.3},
}


def answers(sight: HealthView, now_s: float = NOW_S) -> ProbeAnswers:
    return ProbeAnswers(lambda: sight, lambda: now_s, 30.0)


@pytest.mark.parametrize(
    ("sight", "status", "output"),
    [
        (HealthView(NOW_S - 30.0), 200, "ok\n"),
        (HealthView(NOW_S - 30.1), 503, "[-] tick: last tick 30.1 s ago, limit 30 s\nfailed\n"),
        (
            HealthView(NOW_S, ("publisher", "sources")),
            503,
            "[-] threads: publisher, sources: no progress for 30 s\nfailed\n",
        ),
        (HealthView(NOW_S, (), {**STATUS, "state": "loading"}), 200, "ok\n"),
        (
            HealthView(NOW_S, (), {**STATUS, "destinations": {"broker": {"connected": False, "last_error": "x"}}}),
            200,
            "ok\n",
        ),
    ],
)
def test_livez_goes_by_our_threads_alone(sight: HealthView, status: int, output: str) -> None:
    found = answers(sight).of("/livez", "")
    assert (found.status, found.body.decode()) == (status, output)


@pytest.mark.parametrize(
    ("changes", "output"),
    [
        ({}, ""),
        ({"state": "loading"}, "loaded: loading"),
        ({"state": "stopped"}, "loaded: stopped"),
        ({"behind_s": LAG_LIMIT_S + 1}, "wheel: 11.0 s behind, limit 10 s"),
        ({"destinations": {"broker": {"connected": False, "last_error": "refused"}}}, "broker: refused"),
        ({"destinations": {"broker": {"connected": False, "last_error": ""}}}, "broker: not connected"),
        ({"source": {"kind": "sqlite", "lag_s": LAG_LIMIT_S + 1}}, "changelog: 11.0 s behind, limit 10 s"),
        ({"source": {"kind": "file", "path": "x"}}, ""),
    ],
)
def test_readyz_says_what_is_missing(changes: dict[str, Any], output: str) -> None:
    found = answers(HealthView(NOW_S, (), {**STATUS, **changes})).of("/readyz", "")
    assert found.status == (503 if output else 200)
    assert found.body.decode() == (f"[-] {output}\nfailed\n" if output else "ok\n")


def test_readyz_before_the_first_status_and_without_life() -> None:
    assert answers(HealthView(NOW_S)).of("/readyz", "").body == b"[-] loaded: no status yet\nfailed\n"
    assert [check.name for check in ready(HealthView(0.0, (), STATUS), NOW_S, 30.0) if not check.good] == ["tick"]


def test_verbose_lists_every_check() -> None:
    lines = answers(HealthView(NOW_S, (), STATUS)).of("/readyz?verbose", "").body.decode().splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "[+] tick", "[+] threads", "[+] loaded", "[+] wheel", "[+] broker", "[+] changelog", "ok",
    ]  # fmt: skip


def test_other_paths() -> None:
    assert json.loads(answers(HealthView(NOW_S, (), STATUS)).of("/status", "").body) == STATUS
    assert answers(HealthView(NOW_S)).of("/status", "").status == 503
    assert answers(HealthView(NOW_S)).of("/", "").status == 404
    assert b"/readyz" in answers(HealthView(NOW_S)).of("/healthz", "").body


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.0.0.1:9540", "10.0.3.7:9540", "[::1]", "[::1]:9540", "[fe80::1%eth0]:9540", "localhost",
        "LOCALHOST.:9540", "beat.monitoring.svc:9540", "Beat.Monitoring.Svc", "pod-7.beats.example",
    ],
)  # fmt: skip
def test_known_hosts_are_answered(host: str) -> None:
    made = ProbeAnswers(lambda: HealthView(NOW_S), lambda: NOW_S, 30.0, ("beat.Monitoring.svc", "*.beats.example"))
    assert made.of("/livez", "", [host]).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "", "evil.example", "evil.example:9540", "localhost.evil.example", "127.0.0.1.evil.example", "beat", "[evil]",
        "127.0.0.1@evil.example", "evil.example/127.0.0.1", "[::1", "::1", "127.0.0.1 evil", "beats.example", "127.1",
        "127.0.0.1:80:80", "evil.example#127.0.0.1", "*",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/status", "/livez", "/metrics", "/"])
def test_other_hosts_get_no_answer(host: str, path: str) -> None:
    made = ProbeAnswers(
        lambda: HealthView(NOW_S, (), STATUS), lambda: NOW_S, 30.0, ("beat.monitoring.svc", "*.beats.example")
    )
    for hosts in ([host], ["127.0.0.1", host]):
        found = made.of(path, "", hosts)
        assert found.status == 421
        assert b"wheelbeat_http_hosts" in found.body
        assert b"running" not in found.body
    assert made.of("http://evil.example/status", "", ["127.0.0.1"]).status == 421


def test_metrics_without_the_extra_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "celery_wheelbeat.observe.prometheus", None)
    found = answers(HealthView(NOW_S, (), STATUS)).of("/metrics", "")
    assert found.status == 501
    assert b"pip install 'celery-wheelbeat[prometheus]'" in found.body


@pytest.fixture
def start() -> Iterator[Callable[..., Probes]]:
    started: list[Probes] = []

    def start(port: int, sight: HealthView | None = None, host: str = "127.0.0.1") -> Probes:
        made = Probes(host, port, answers(sight or HealthView(NOW_S, (), STATUS)))
        made.start()
        started.append(made)
        return made

    yield start
    for made in started:
        made.close()


class Lines(logging.Handler):
    """Lines of the log, which a test can wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._news = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self._news:
            self.texts.append(record.getMessage())
            self._news.notify_all()

    def wait_for(self, text: str) -> None:
        with self._news:
            assert self._news.wait_for(lambda: any(text in line for line in self.texts), WAIT_S), self.texts


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, logger = Lines(), logging.getLogger("celery.beat")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


def get(port: int, path: str, host: str = "127.0.0.1", method: str = "GET") -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://{host}:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_it_listens_and_gives_the_port_back(start: Callable[..., Probes], lines: Lines) -> None:
    port = free_port()
    for _ in range(2):
        lines.texts.clear()
        made = start(port)
        lines.wait_for(f"Probes and metrics on 127.0.0.1 port {port}")
        assert get(port, "/livez") == (200, b"ok\n")
        assert get(port, "/livez", method="HEAD") == (200, b"")
        assert get(port, "/livez", method="POST")[0] == 501
        made.close()
        with pytest.raises(urllib.error.URLError):
            get(port, "/livez")


def test_a_page_that_lets_its_name_point_here_reads_nothing(start: Callable[..., Probes], lines: Lines) -> None:
    port = free_port()
    start(port)
    lines.wait_for(f"Probes and metrics on 127.0.0.1 port {port}")
    answered = {}
    for host in (f"evil.example:{port}", f"localhost:{port}", None):
        header = b"" if host is None else b"Host: %s\r\n" % host.encode()
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as client:
            client.sendall(b"GET /status HTTP/1.0\r\n" + header + b"\r\n")
            answered[host] = b"".join(iter(lambda client=client: client.recv(65_536), b""))
    assert b" 421 " in answered[f"evil.example:{port}"]
    assert b'"running"' not in answered[f"evil.example:{port}"]
    assert b'"running"' in answered[f"localhost:{port}"]
    assert b'"running"' in answered[None]  # no browser leaves it out


def test_it_listens_on_ipv6(start: Callable[..., Probes], lines: Lines) -> None:
    port = free_port()
    start(port, host="::1")
    lines.wait_for(f"on ::1 port {port}")
    assert get(port, "/readyz", host="[::1]") == (200, b"ok\n")


def test_a_port_in_use_is_one_warning_and_is_taken_once_it_is_free(
    start: Callable[..., Probes], lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = threading.Event()
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        made = Probes("127.0.0.1", port, answers(HealthView(NOW_S)))
        tries = []

        class Tried(probes._Server):
            def __init__(self, *of: Any) -> None:
                tries.append(of)
                if len(tries) == 2:
                    again.set()
                super().__init__(*of)

        monkeypatch.setattr(probes, "_Server", Tried)
        monkeypatch.setattr(probes, "BIND_AGAIN_S", 0.01)
        made.start()
        assert again.wait(WAIT_S)
    lines.wait_for(f"Probes and metrics on 127.0.0.1 port {port}")
    assert [line for line in lines.texts if "Cannot listen" in line] == [
        line for line in lines.texts if f"wheelbeat_http_port {port}" in line and "Address already in use" in line
    ]
    assert len([line for line in lines.texts if "Cannot listen" in line]) == 1
    made.close()


def test_an_address_of_another_host_does_not_keep_a_beat_from_stopping(
    start: Callable[..., Probes], lines: Lines
) -> None:
    made = start(free_port(), host="192.0.2.1")
    lines.wait_for("Cannot listen on wheelbeat_http_host 192.0.2.1")
    made.close()
    assert not made._thread.is_alive


def test_connections_are_bounded_and_silent_clients_are_dropped(
    start: Callable[..., Probes], lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    start(port)
    lines.wait_for("Probes and metrics")
    threads = threading.active_count()
    silent = [socket.create_connection(("127.0.0.1", port), WAIT_S) for _ in range(CONNECTIONS_MAX)]
    extra = socket.create_connection(("127.0.0.1", port), WAIT_S)
    assert extra.recv(1) == b"", "one too many is closed without an answer"
    extra.close()
    assert threading.active_count() <= threads + CONNECTIONS_MAX
    for client in silent:
        client.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
    for client in silent:
        assert client.makefile("rb").readline() == b"HTTP/1.0 200 OK\r\n"
        client.close()
    monkeypatch.setattr(probes._Handler, "timeout", 0.1)
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as client:
        assert client.recv(1) == b"", "who says nothing is dropped"
    assert get(port, "/livez") == (200, b"ok\n")


def test_a_client_that_takes_its_time_for_ever_is_dropped(
    start: Callable[..., Probes], lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes._Handler, "timeout", None)
    monkeypatch.setattr(probes, "CONNECTION_S", 0.1)
    port = free_port()
    start(port)
    lines.wait_for("Probes and metrics")
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as client:
        client.sendall(b"GET /livez HTTP/1.0\r\nX: ")
        assert client.recv(1) == b""
    monkeypatch.undo()
    assert get(port, "/livez") == (200, b"ok\n")


def test_a_failure_inside_is_a_500_and_a_line_in_the_log(start: Callable[..., Probes], lines: Lines) -> None:
    port = free_port()
    start(port, HealthView(NOW_S, (), {"state": "half a document"}))
    lines.wait_for("Probes and metrics")
    assert get(port, "/readyz") == (500, b"see the log of the beat\n")
    lines.wait_for("The answer to GET '/readyz' failed")
    assert get(port, "/livez") == (200, b"ok\n")


def test_a_scheduler_opens_the_port_at_its_first_tick_and_answers_before_its_database_does(
    lines: Lines, tmp_path: Path
) -> None:
    port = free_port()
    app = Celery("probed", broker="memory://", set_as_current=False)
    app.conf.update(
        wheelbeat_http_port=port,
        wheelbeat_database_url="postgresql://postgres@127.0.0.1:9/nowhere?connect_timeout=1",
    )
    scheduler = WheelScheduler(app=app, schedule_filename=str(tmp_path / "schedule"))
    with pytest.raises(urllib.error.URLError):
        get(port, "/livez")
    scheduler.tick()
    lines.wait_for(f"Probes and metrics on 127.0.0.1 port {port}")
    assert get(port, "/livez") == (200, b"ok\n")
    assert b"[-] loaded: starting\n" in get(port, "/readyz")[1]
    assert b'wheelbeat_state{state="starting"} 1.0' in get(port, "/metrics")[1]
    scheduler.close()
    app.close()
    with pytest.raises(urllib.error.URLError):
        get(port, "/livez")


def test_a_port_in_use_stops_no_run(lines: Lines, tmp_path: Path) -> None:
    app = Celery("probed", broker="memory://", set_as_current=False)
    app.conf.update(wheelbeat_tick=0.1, beat_schedule={"a": {"task": "t", "schedule": 0.1}}, result_expires=None)
    with socket.create_server(("127.0.0.1", 0)) as holder:
        app.conf.wheelbeat_http_port = holder.getsockname()[1]
        scheduler = WheelScheduler(app=app, schedule_filename=str(tmp_path / "schedule"))
        scheduler.tick()
        lines.wait_for("Cannot listen on wheelbeat_http_host 127.0.0.1")
        end_s = time.monotonic() + WAIT_S
        while sum("Sending due task a" in line for line in lines.texts) < 2:
            assert time.monotonic() < end_s, lines.texts
            scheduler.tick()
        scheduler.close()
    app.close()
