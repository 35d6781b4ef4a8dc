"""Write one-off runs into PostgreSQL. Parts of the table are addressed by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_wheelbeat.later.ring import due_ms_of, part_of, parts_between, parts_of, table_of
from celery_wheelbeat.later.writers import COPY_ROWS, IN_FORCE_MS, Found, Wanted, by_due_time, first_found
from celery_wheelbeat.runtime.statements import read_statements

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_wheelbeat.later.connections import Caller
    from celery_wheelbeat.later.run import LaterRun


class PostgresWriter:
    """``LaterWriter`` on PostgreSQL."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._statements = read_statements("celery_wheelbeat.later", "sql/postgresql.sql")

    def insert(self, runs: Sequence[LaterRun]) -> None:
        """See ``LaterWriter``."""
        if len(runs) >= COPY_ROWS and self._caller.copy(self._statements["copy"], self._placed(runs)):
            return
        columns: Sequence[Sequence[Any]] = list(zip(*runs, strict=True))
        names = ("ids", "at_ms", "keys", "tasks", "args", "kwargs", "options")
        if runs:
            self._run("insert", dict(zip(names, map(list, columns), strict=True)))

    def cancel(self, run_id: str) -> bool:
        """See ``LaterWriter``."""
        due_ms = due_ms_of(run_id)
        return due_ms is not None and bool(self._of_second("cancel", due_ms // 1000, run_id))

    def of_id(self, run_id: str, *, lock: bool) -> Found | None:  # noqa: ARG002 - to write an id takes no lock before
        """See ``LaterWriter``; a run that was due when it was inserted lies in a later second and is not found."""
        due_ms = due_ms_of(run_id)
        return None if due_ms is None else first_found(self._of_second("of_id", due_ms // 1000, run_id))

    def of_key(self, key: str, *, lock: bool) -> Found | None:
        """See ``LaterWriter``."""
        if lock:
            self._run("lock_key", {"key": key})
        return first_found(self._run("of_key", {"key": key, "in_force_ms": IN_FORCE_MS}))

    def count(self, from_s: int, until_s: int) -> int:
        """See ``LaterWriter``."""
        return int(self._of_parts("count", {"from_s": from_s, "until_s": until_s})[0][0])

    def listed(self, wanted: Wanted) -> Sequence[Found]:
        """See ``LaterWriter``."""
        return by_due_time(self._of_parts("list", {**wanted._asdict(), "in_force_ms": IN_FORCE_MS}))

    def _placed(self, runs: Sequence[LaterRun]) -> list[tuple[Any, ...]]:
        """Return the rows of a COPY. The transaction has its id before the clock is read, as in ``insert``."""
        now_s = int(self._run("clock", {})[0][0]) // 1000
        seconds = [max(run.at_ms // 1000, now_s + 1) for run in runs]
        return [(part_of(second, now_s), second, *run) for second, run in zip(seconds, runs, strict=True)]

    def _of_second(self, name: str, second: int, run_id: str) -> list[Sequence[Any]]:
        day, month, _ = map(table_of, parts_of(second))
        statement = self._statements[name].replace("{day_table}", day).replace("{month_table}", month)
        return self._caller.rows(statement, {"second": second, "id": run_id, "in_force_ms": IN_FORCE_MS})

    def _of_parts(self, name: str, parameters: Mapping[str, Any]) -> list[Sequence[Any]]:
        """Run a statement on the parts of a range of seconds, each addressed by its name."""
        tables = map(table_of, parts_between(parameters["from_s"], parameters["until_s"]))
        parts = " UNION ALL ".join(self._statements["all_of_part"].replace("{table}", table) for table in tables)
        return self._caller.rows(self._statements[name].replace("{parts}", parts), parameters)

    def _run(self, name: str, parameters: Mapping[str, Any]) -> list[Sequence[Any]]:
        return self._caller.rows(self._statements[name], parameters)
