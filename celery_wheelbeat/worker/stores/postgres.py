"""Claims in PostgreSQL: connections with statements prepared once and deferred reads of their answers.

Uses libpq's pipeline mode through ``psycopg.pq``: a posted statement is sent when ``post`` returns, the server executes
and commits it at once, and its outcome is read before the next answer. psycopg's cursors would cost each claim as much
time as the server does. No call waits longer than ``ANSWER_S``.
"""

from __future__ import annotations

import re
import time
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.waiting import Ready, Wait

from celery_wheelbeat.worker.stores.connection import Losses, StoreAnswer
from celery_wheelbeat.worker.stores.sql import POSTGRES, SqlStore

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from psycopg.pq.abc import PGresult

TIMEOUT_S = 2
STATEMENT_TIMEOUT_MS = 2_000
ANSWER_S = 2.5
"""Time-out on the client: a frozen server cannot enforce its own."""
DIRECT = "wheelbeat.direct"
"""A parameter set through the connection options; if the server reports it, no pooler in between drops the options."""
DJANGO_OBJECTS = ("cursor_factory", "context", "row_factory")
"""Connection parameters of Django that only its own cursors need."""
SWIFT = f"-c synchronous_commit=off -c statement_timeout={STATEMENT_TIMEOUT_MS} -c {DIRECT}=1"


def postgres_store(parameters: Callable[[], Mapping[str, Any]]) -> SqlStore:
    """Keep claims in PostgreSQL; ``parameters()`` returns those of ``psycopg.connect``, called for each connection.

    Claims are committed without waiting for the disk: a crash of the server may lose those of its last second.
    """
    losses = Losses()
    return SqlStore(
        "postgresql", POSTGRES, lambda: _connect(parameters(), losses), (psycopg.Error, OSError), losses=losses
    )


def _connect(parameters: Mapping[str, Any], losses: Losses) -> PostgresLine:
    given = {key: value for key, value in parameters.items() if key not in DJANGO_OBJECTS}
    given = {**psycopg.conninfo.conninfo_to_dict(given.pop("conninfo", "")), **given}
    given |= {"autocommit": True, "connect_timeout": TIMEOUT_S, "prepare_threshold": None}
    given.setdefault("tcp_user_timeout", TIMEOUT_S * 1000)  # detect a server that vanished
    try:
        connection = _Impatient.connect(**{**given, "options": f"{given.get('options') or ''} {SWIFT}".strip()})
    except psycopg.OperationalError as error:
        if "startup parameter" not in str(error):
            raise
        connection = _Impatient.connect(**given)
    try:
        direct = connection.execute(f"SELECT current_setting('{DIRECT}', true)").fetchone() == ("1",)
        # behind a pooler the next statement may use another server connection, without the prepared statements
        return PostgresLine(connection, losses, swift=direct and psycopg.Pipeline.is_supported())
    except BaseException:
        connection.close()
        raise


class _Impatient(psycopg.Connection[Any]):
    """Raises if the server does not answer in time."""

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        return super().wait(_given_up_after(ANSWER_S, gen), *args, **kwargs)


class PostgresLine:
    """A line to PostgreSQL.

    If ``swift``, it prepares each statement once and reads the outcome of a posted one with the next answer. Otherwise
    nothing is prepared and every statement waits for its answer.
    """

    def __init__(self, connection: psycopg.Connection[Any], losses: Losses, *, swift: bool) -> None:
        self._connection = connection
        self._libpq = connection.pgconn
        self._losses = losses
        self._swift = swift
        self._prepared: dict[str, bytes] = {}
        self._owed = 0
        """Posted statements whose outcome has not been read."""
        if swift:
            self._libpq.enter_pipeline_mode()

    def ask(self, statement: str, *values: object) -> StoreAnswer:
        """See ``Line``."""
        name = self._prepared.get(statement) or b"wheelbeat_%d" % len(self._prepared)
        self._send(name, statement, values)
        while self._owed:
            if _refused(self._connection.wait(self._result())):
                self._losses.add(1)
            self._owed -= 1
        result = self._connection.wait(self._result())
        if _refused(result):
            raise psycopg.DatabaseError(result.error_message.decode(errors="replace").strip())
        if self._swift:
            self._prepared[statement] = name
        return StoreAnswer(result.command_tuples or 0, _first_row(result))

    def post(self, statement: str, *values: object) -> None:
        """See ``Line``: an unprepared statement waits for its answer, so that a failed preparation is noticed."""
        if (name := self._prepared.get(statement)) is None:
            self.ask(statement, *values)
        else:
            self._send(name, statement, values)
            self._owed += 1

    def close(self) -> None:
        """See ``Line``."""
        self._losses.add(self._owed)
        self._owed = 0
        self._connection.close()

    def _send(self, name: bytes, statement: str, values: tuple[object, ...]) -> None:
        texts = [str(value).encode() for value in values]
        if self._swift:
            if statement not in self._prepared:
                self._libpq.send_prepare(name, _numbered(statement))
            self._libpq.send_query_prepared(name, texts)
            self._libpq.pipeline_sync()
        else:
            self._libpq.send_query_params(_numbered(statement), texts)
        if self._libpq.flush():
            self._connection.wait(self._flushed())

    def _flushed(self) -> Generator[Wait, Ready | int, None]:
        """Wait with psycopg until everything is sent."""
        while self._libpq.flush():
            if (yield Wait.RW) & Ready.R:
                self._libpq.consume_input()

    def _result(self) -> Generator[Wait, Ready | int, PGresult]:
        """Wait with psycopg for all results of one statement; returns the first error result, else the last result."""
        libpq = self._libpq
        found: PGresult | None = None
        while True:
            while libpq.is_busy():
                if (yield Wait.R):
                    libpq.consume_input()
            result = libpq.get_result()
            if result is None:
                if libpq.status == ConnStatus.BAD:
                    raise psycopg.OperationalError(libpq.error_message.decode(errors="replace").strip())
                if not self._swift and found is not None:
                    return found
            elif result.status == ExecStatus.PIPELINE_SYNC:
                if found is not None:
                    return found
            elif found is None or not _refused(found):
                found = result


def _refused(result: PGresult) -> bool:
    return result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)


def _first_row(result: PGresult) -> tuple[str | None, ...] | None:
    if not result.ntuples:
        return None
    values = (result.get_value(0, column) for column in range(result.nfields))
    return tuple(None if value is None else bytes(value).decode() for value in values)


@cache
def _numbered(statement: str) -> bytes:
    """Replace ``%s`` by the server's placeholders ``$1``, ``$2``, …."""
    numbers = count(1)
    return re.sub("%s", lambda _: f"${next(numbers)}", statement).encode()


def _given_up_after(limit_s: float, conversation: Any) -> Generator[Any, Any, Any]:
    """Delegate to psycopg's generator ``conversation``; raise when it exceeds the time-out."""
    until_s = time.monotonic() + limit_s
    try:
        wanted = next(conversation)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() >= until_s:
                raise psycopg.OperationalError(f"no answer within {limit_s:g} s")
            wanted = conversation.send(ready)
    except StopIteration as end:
        return end.value
