"""``celery wheelbeat dedup-check`` where services are away: each is one finding, and the others are looked at."""

from __future__ import annotations

import sys
from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from celery import Celery
from click.testing import CliRunner
from services import TcpProxy, free_port

from celery_wheelbeat.commands.dedup_check import dedup_check

if TYPE_CHECKING:
    from pathlib import Path


def check(**conf: Any) -> list[str]:
    """Run the command for an app of its own; return what it prints."""
    app = Celery("checked", set_as_current=False)
    app.conf.update(conf)
    with closing(app):
        done = CliRunner().invoke(dedup_check, ["--timeout", "0.5"], obj=SimpleNamespace(app=app))
    assert isinstance(done.exception, SystemExit), done.exc_info
    assert done.exit_code == 1
    assert "Traceback" not in done.output
    assert "secret" not in done.output
    return done.output.splitlines()


def findings(lines: list[str]) -> list[str]:
    """Return the lines that are no remedies."""
    return [line for line in lines if not line.startswith(" ")]


@pytest.mark.parametrize(("scheme", "driver"), [("amqp", "amqp"), ("redis", "redis"), ("rediss", "redis")])
def test_a_broker_that_is_away_is_one_finding(scheme: str, driver: str, tmp_path: Path) -> None:
    url = f"{scheme}://:secret@127.0.0.1:{free_port()}/0"
    lines = check(broker_url=url, wheelbeat_dedup_url=f"sqlite:///{tmp_path}/claims.sqlite3")
    assert lines[0].startswith(f"BAD  broker ({driver}): ")
    assert "refused" in lines[0]
    assert lines[1] == "     start the server, or correct its address"
    assert [line[:5] for line in findings(lines)] == ["BAD  ", "ok   ", "ok   "], "the claims are looked at"


@pytest.mark.redis
def test_a_broker_that_keeps_silent_is_one_finding(redis_url: str, tmp_path: Path) -> None:
    server = urlsplit(redis_url)
    with TcpProxy(server.port or 6379, server.hostname or "127.0.0.1") as proxy:
        proxy.black_hole()
        lines = check(
            broker_url=f"redis://127.0.0.1:{proxy.port}/0",
            broker_transport_options={"socket_timeout": 0.2, "socket_connect_timeout": 0.2},
            wheelbeat_dedup_url=f"sqlite:///{tmp_path}/claims.sqlite3",
        )
    assert lines[0].startswith("BAD  broker (redis): ")
    assert len(findings(lines)) == 3


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nonsense://h", "transport cannot be loaded"),
        ("redis://:se/secret@h:1/0", "broker_url cannot be read"),
    ],
)
def test_a_broker_that_cannot_be_named_is_one_finding(url: str, words: str, tmp_path: Path) -> None:
    lines = check(broker_url=url, wheelbeat_dedup_url=f"sqlite:///{tmp_path}/claims.sqlite3")
    assert words in lines[0]
    assert [line[:4] for line in lines] == ["BAD ", "ok  ", "ok  "]


@pytest.mark.parametrize("scheme", ["redis", "postgresql", "mysql", "memcached", "sentinel"])
def test_claims_that_are_away_are_one_finding(scheme: str) -> None:
    url = f"{scheme}://u:secret@127.0.0.1:{free_port()}/0"
    lines = findings(
        check(
            broker_url="memory://",
            wheelbeat_dedup_url=url,
            result_backend_transport_options={"master_name": "main"},
        )
    )
    assert lines[0] == "ok   broker (memory): reachable"
    assert lines[1].startswith(f"BAD  claims in wheelbeat_dedup_url ({scheme}): ")
    assert lines[2:] == ["BAD  no worker answers"]


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ({"result_backend": "redis://h"}, "redis"),
        ({"wheelbeat_dedup_url": "redis://h"}, "claim store redis"),
        ({"result_backend": "nonsense://h"}, "result_backend (nonsense) cannot keep claims"),
    ],
)
def test_a_store_without_its_driver_is_one_finding(
    conf: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from celery.backends import redis as results

    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.delitem(sys.modules, "celery_wheelbeat.worker.stores.redis", raising=False)
    monkeypatch.setattr(results, "redis", None)
    lines = findings(check(broker_url="memory://", **conf))
    assert [line[:5] for line in lines] == ["ok   ", "BAD  ", "BAD  "]
    assert words in lines[1]
