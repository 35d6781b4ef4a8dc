"""Write one-off runs into SQLite, which has one writer at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_wheelbeat.later.ring import due_ms_of
from celery_wheelbeat.later.writers import IN_FORCE_MS, Found, Wanted, by_due_time, first_found
from celery_wheelbeat.runtime.statements import read_statements

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_wheelbeat.later.connections import Caller
    from celery_wheelbeat.later.run import LaterRun


class SqliteWriter:
    """``LaterWriter`` on SQLite, which has one writer at a time."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._statements = read_statements("celery_wheelbeat.later", "sql/sqlite.sql")

    def insert(self, runs: Sequence[LaterRun]) -> None:
        """See ``LaterWriter``."""
        for run in runs:
            self._run("insert", run._asdict())

    def cancel(self, run_id: str) -> bool:
        """See ``LaterWriter``."""
        due_ms = due_ms_of(run_id)
        if due_ms is None:
            return False
        place = {"second": due_ms // 1000, "id": run_id}
        if not self._run("tombstone", {**place, "in_force_ms": IN_FORCE_MS}):
            return False
        self._run("delete", place)
        return True

    def of_id(self, run_id: str, *, lock: bool) -> Found | None:
        """See ``LaterWriter``."""
        if lock:
            self._run("lock", {})
        due_ms = due_ms_of(run_id)
        if due_ms is None:
            return None
        return first_found(self._run("of_id", {"second": due_ms // 1000, "id": run_id, "in_force_ms": IN_FORCE_MS}))

    def of_key(self, key: str, *, lock: bool) -> Found | None:
        """See ``LaterWriter``."""
        if lock:
            self._run("lock", {})
        return first_found(self._run("of_key", {"key": key, "in_force_ms": IN_FORCE_MS}))

    def count(self, from_s: int, until_s: int) -> int:
        """See ``LaterWriter``."""
        return int(self._run("count", {"from_s": from_s, "until_s": until_s})[0][0])

    def listed(self, wanted: Wanted) -> Sequence[Found]:
        """See ``LaterWriter``."""
        return by_due_time(self._run("list", {**wanted._asdict(), "in_force_ms": IN_FORCE_MS}))

    def _run(self, name: str, parameters: Mapping[str, Any]) -> list[Sequence[Any]]:
        return self._caller.rows(self._statements[name], parameters)
