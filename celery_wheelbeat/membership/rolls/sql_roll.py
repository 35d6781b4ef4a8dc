"""A roll in a table ``wheelbeat_member`` of PostgreSQL, MariaDB or SQLite: one row a beat.

A beat updates its row and reads the others. Only the first one inserts, since an identity that is not used up by each
beat is its seniority. Two beats that announce the same shard at the same time may not see each other on PostgreSQL and
MariaDB; the next looks settle that.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from celery_wheelbeat.errors import RollDown, reason_of
from celery_wheelbeat.membership import Heard, Peer
from celery_wheelbeat.runtime.statements import read_statements

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence


class SqlLink(Protocol):
    """One connection of a driver."""

    def run(self, statements: str, values: Mapping[str, Any]) -> list[list[Sequence[Any]]]:
        """Run the statements, which ``;`` and a line end separate, and return the rows of each one that has any."""

    def close(self) -> None:
        """Drop the connection; never raises."""


class SqlRoll:
    """``Roll`` in a table. ``wait_s``: bound of one exchange with the database."""

    def __init__(
        self, vendor: str, parameters: Callable[[], Mapping[str, Any]], namespace: str, beat_id: str, wait_s: float
    ) -> None:
        """``parameters()`` returns the driver's connection parameters; it is called before each connect."""
        self._vendor = vendor
        self._parameters = parameters
        self._wait_s = wait_s
        self._values = {"namespace": namespace, "beat_id": beat_id, "wait_ms": round(wait_s * 1000)}
        self._statements = read_statements("celery_wheelbeat.membership.rolls", f"sql/{vendor}.sql")
        self._link: SqlLink | None = None

    def beat(self, text: str) -> Heard:
        """See ``Roll``."""
        with self._errors() as link:
            mine, others = self._run(link, "beat", line=text)
            if not mine:
                self._run(link, "enter", line=text)
                mine, others = self._run(link, "beat", line=text)
        ((order, now_ms),) = mine
        peers = [
            Peer(str(beat_id), int(number), int(beats), float(age_s), str(line))
            for beat_id, number, beats, age_s, line in others
        ]
        return Heard(peers, int(order), int(now_ms))

    def leave(self, text: str) -> None:
        """See ``Roll``."""
        self.beat(text)

    def fence(self, beat_id: str) -> bool:  # noqa: ARG002 - a database does not know the connections to the broker
        """See ``Roll``."""
        return False

    def forget(self, beat_ids: Collection[str]) -> None:
        """See ``Roll``."""
        with self._errors() as link:
            for beat_id in sorted(beat_ids):
                self._run(link, "forget", beat_id=beat_id)

    def close(self) -> None:
        """See ``Roll``."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _run(self, link: SqlLink, name: str, **values: Any) -> list[list[Sequence[Any]]]:
        return link.run(self._statements[name], {**self._values, **values})

    @contextmanager
    def _errors(self) -> Iterator[SqlLink]:
        try:
            if self._link is None:
                self._link = _connect(self._vendor, self._parameters(), self._wait_s)
            yield self._link
        except Exception as error:
            self.close()
            raise RollDown(f"roll in {self._vendor}: {reason_of(error)}") from error


def _connect(vendor: str, parameters: Mapping[str, Any], wait_s: float) -> SqlLink:
    """Open a connection; drivers are imported on demand."""
    if vendor == "postgresql":
        from celery_wheelbeat.membership.rolls.postgres_link import PostgresLink  # noqa: PLC0415 - see above

        return PostgresLink(parameters, wait_s)
    from celery_wheelbeat.membership.rolls.cursor_links import connect_mariadb, connect_sqlite  # noqa: PLC0415 - same

    return (connect_mariadb if vendor == "mysql" else connect_sqlite)(parameters, wait_s)
