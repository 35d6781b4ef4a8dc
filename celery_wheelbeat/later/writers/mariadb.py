"""Write one-off runs into MariaDB, with the ring of parts that PostgreSQL has."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from celery_wheelbeat.later.ring import due_ms_of, parts_between, parts_of
from celery_wheelbeat.later.writers import IN_FORCE_MS, Found, Wanted, by_due_time, first_found
from celery_wheelbeat.runtime.statements import read_statements

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_wheelbeat.later.connections import Caller
    from celery_wheelbeat.later.run import LaterRun

STATEMENT_BYTES = 2 << 20
"""Most bytes of the rows of one statement, unless one row has more: the server's default limit is 16 MB."""


class MariadbWriter:
    """``LaterWriter`` on MariaDB."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._statements = read_statements("celery_wheelbeat.later", "sql/mysql.sql")

    def insert(self, runs: Sequence[LaterRun]) -> None:
        """See ``LaterWriter``."""
        rows: list[str] = []
        size = 0
        for text in map(json.dumps, runs):
            if rows and size + len(text) > STATEMENT_BYTES:
                self._run("insert", {"rows": f"[{','.join(rows)}]"})
                rows, size = [], 0
            rows.append(text)
            size += len(text)
        if rows:
            self._run("insert", {"rows": f"[{','.join(rows)}]"})

    def cancel(self, run_id: str) -> bool:
        """See ``LaterWriter``."""
        due_ms = due_ms_of(run_id)
        if due_ms is None:
            return False
        place = _place(due_ms // 1000, run_id)
        gone = self._run("delete", place)
        for part, at_ms in gone:
            self._run("tombstone", {**place, "part": part, "at_ms": at_ms})
        return bool(gone)

    def of_id(self, run_id: str, *, lock: bool) -> Found | None:  # noqa: ARG002 - to write an id takes no lock before
        """See ``LaterWriter``; a run that was due when it was inserted lies in a later second and is not found."""
        due_ms = due_ms_of(run_id)
        return None if due_ms is None else first_found(self._run("of_id", _place(due_ms // 1000, run_id)))

    def of_key(self, key: str, *, lock: bool) -> Found | None:
        """See ``LaterWriter``.

        In REPEATABLE READ, a transaction that has read before does not see what others have written since.
        """
        if lock:
            self._run("lock_key", {"key": key})
        return first_found(self._run("of_key", {"key": key, "in_force_ms": IN_FORCE_MS}))

    def count(self, from_s: int, until_s: int) -> int:
        """See ``LaterWriter``."""
        parts = parts_between(from_s, until_s)
        return int(self._run("count", {"from_s": from_s, "until_s": until_s, "parts": parts})[0][0])

    def listed(self, wanted: Wanted) -> Sequence[Found]:
        """See ``LaterWriter``."""
        parts = parts_between(wanted.from_s, wanted.until_s)
        given = {**wanted._asdict(), "in_force_ms": IN_FORCE_MS, "parts": parts}
        return by_due_time(self._run("list", given))

    def _run(self, name: str, parameters: Mapping[str, Any]) -> list[Sequence[Any]]:
        return self._caller.rows(self._statements[name], parameters)


def _place(second: int, run_id: str) -> dict[str, Any]:
    return {"parts": parts_of(second), "second": second, "id": run_id, "in_force_ms": IN_FORCE_MS}
