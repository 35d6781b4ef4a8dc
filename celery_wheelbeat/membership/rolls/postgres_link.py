"""A connection to PostgreSQL whose every wait has a deadline, also while it connects.

psycopg's own connections wait at least two seconds for a connect and without bound for an answer. libpq's calls
through ``psycopg.pq`` do not wait at all; this module waits. Statements go out in one message of the simple protocol:
nothing is prepared, and a pooler sees one transaction.
"""

from __future__ import annotations

import selectors
import time
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import ConnStatus, Escaping, ExecStatus, PGconn, PollingStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from psycopg.pq.abc import PGresult

NOT_LIBPQ = ("cursor_factory", "context", "row_factory", "autocommit", "prepare_threshold")
"""Parameters of psycopg's and Django's connections that are none of libpq's."""


class PostgresLink:
    """See ``SqlLink``. ``wait_s``: bound of the connect, and of each ``run``."""

    def __init__(self, parameters: Mapping[str, Any], wait_s: float) -> None:
        given = {name: value for name, value in parameters.items() if name not in NOT_LIBPQ}
        named = {"application_name": "wheelbeat", **psycopg.conninfo.conninfo_to_dict(given.pop("conninfo", ""))}
        conninfo = psycopg.conninfo.make_conninfo("", **{**named, **given, "client_encoding": "UTF8"})
        self._wait_s = wait_s
        self._until_s = time.monotonic() + wait_s
        self._libpq = PGconn.connect_start(conninfo.encode())
        try:
            while (polled := self._libpq.connect_poll()) != PollingStatus.OK:
                self._require(polled != PollingStatus.FAILED and self._libpq.status != ConnStatus.BAD)
                self._wait(selectors.EVENT_READ if polled == PollingStatus.READING else selectors.EVENT_WRITE)
            self._libpq.nonblocking = 1
        except BaseException:
            self.close()
            raise

    def run(self, statements: str, values: Mapping[str, Any]) -> list[list[Sequence[Any]]]:
        """See ``SqlLink``; values are texts."""
        self._until_s = time.monotonic() + self._wait_s
        literal = Escaping(self._libpq).escape_literal
        texts = {name: bytes(literal(str(value).encode())).decode() for name, value in values.items()}
        self._libpq.send_query((statements % texts).encode())
        while self._libpq.flush():
            self._wait(selectors.EVENT_READ | selectors.EVENT_WRITE)
            self._libpq.consume_input()
        found = []
        while (result := self._next()) is not None:
            self._require(result.status in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK))
            if result.status == ExecStatus.TUPLES_OK:
                found.append(_rows(result))
        return found

    def close(self) -> None:
        """See ``SqlLink``."""
        self._libpq.finish()

    def _next(self) -> PGresult | None:
        while self._libpq.is_busy():
            self._wait(selectors.EVENT_READ)
            self._libpq.consume_input()
        return self._libpq.get_result()

    def _wait(self, events: int) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._libpq.socket, events)
            if not selector.select(max(0.0, self._until_s - time.monotonic())):
                raise TimeoutError(f"no answer within {self._wait_s:g} s")

    def _require(self, fine: bool) -> None:
        if not fine:
            raise psycopg.OperationalError(self._libpq.error_message.decode(errors="replace").strip())


def _rows(result: PGresult) -> list[Sequence[Any]]:
    columns = range(result.nfields)
    return [
        tuple(bytes(result.get_value(row, column) or b"").decode() for column in columns)
        for row in range(result.ntuples)
    ]
