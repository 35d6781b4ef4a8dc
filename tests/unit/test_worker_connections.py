"""The connections of a claim store: who gets one, and what a failure does to the others."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from celery_wheelbeat.errors import ClaimStoreDown
from celery_wheelbeat.worker.stores.connections import Connections


class Cut(Exception):
    """What the driver raises."""


class Server:
    """Numbers its connections; ``up`` says whether it answers those from ``first`` on."""

    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self.first = 1
        self.up = True
        self.closed: list[int] = []
        self.connections = Connections("here", self.open, self.closed.append, (Cut,))

    def open(self) -> int:
        if not self.up:
            raise Cut("refused")
        return next(self.numbers)

    def restart(self) -> None:
        """Cut every connection there is."""
        self.first = next(self.numbers)

    def ask(self, connection: int, answer: str = "yes") -> str:
        if not self.up or connection < self.first:
            raise Cut(f"connection {connection}")
        return answer


def test_a_connection_is_used_again_and_each_that_asks_meanwhile_has_its_own() -> None:
    server = Server()
    seen: list[int] = []

    def ask(connection: int, deeper: int) -> None:
        seen.append(connection)
        if deeper:
            server.connections.lend(ask, deeper - 1)

    server.connections.lend(ask, 2)
    server.connections.lend(ask, 0)
    assert len(set(seen[:3])) == 3
    assert seen[3] in seen[:3]
    assert server.closed == []


def test_a_server_that_was_restarted_has_cut_idle_connections_and_nobody_notices() -> None:
    server = Server()
    server.connections.lend(lambda _: server.connections.lend(server.ask))
    server.restart()
    assert server.connections.lend(server.ask, answer="again") == "again"
    assert sorted(server.closed) == [1, 2], "all of them, although one was asked"


def test_a_server_that_is_away_is_asked_once_more_and_no_further() -> None:
    server = Server()
    server.connections.lend(server.ask)
    server.up = False
    with pytest.raises(ClaimStoreDown, match="the claim store here does not answer"):
        server.connections.lend(server.ask)
    asked = []

    def fail(connection: int) -> None:
        asked.append(connection)
        raise Cut

    server.up = True
    with pytest.raises(ClaimStoreDown):
        server.connections.lend(fail)
    assert len(asked) == 1, "on a new connection the failure is one"
    assert server.closed == [1, *asked]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, KeyError])
def test_a_conversation_that_was_interrupted_is_not_continued_by_anybody(interruption: Any) -> None:
    server = Server()
    server.connections.lend(server.ask)

    def interrupted(_: int) -> None:
        raise interruption

    with pytest.raises(interruption):
        server.connections.lend(interrupted)
    assert server.closed == [1]
    assert server.connections.lend(lambda connection: connection) == 2
