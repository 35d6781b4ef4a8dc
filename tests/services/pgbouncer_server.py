"""A private PgBouncer in front of a PostgreSQL server."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg

from .server import PrivateServer, program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONSOLE = "pgbouncer"
"""The database through which PgBouncer answers questions about itself."""


class PrivatePgbouncer(PrivateServer):
    """Pools connections to the server of ``behind`` in transaction mode; any user may enter.

    ``settings`` override its section ``[pgbouncer]``.
    """

    name = "pgbouncer"
    users = ("pgbouncer", "postgres")

    def __init__(self, behind: str, port: int | None = None, **settings: str) -> None:
        super().__init__(port)
        self._behind = urlsplit(behind)
        self._settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "any",
            "admin_users": "postgres",
            "pool_mode": "transaction",
            "server_round_robin": "1",
            **settings,
        }

    @property
    def url(self) -> str:
        return self.database_url(self._behind.path[1:])

    def database_url(self, database: str) -> str:
        """URL of a database behind the pooler."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def command(self) -> Sequence[str]:
        file = self.folder / "pgbouncer.ini"
        host, port, user = self._behind.hostname, self._behind.port or 5432, self._behind.username or "postgres"
        lines = ["[databases]", f"* = host={host} port={port} user={user}", "[pgbouncer]"]
        file.write_text("\n".join([*lines, *(f"{key} = {value}" for key, value in self._settings.items()), ""]))
        return [program("pgbouncer", "/usr/sbin", "/usr/local/sbin", package="pgbouncer"), str(file)]

    def answers(self) -> bool:
        try:
            self.ask("SHOW VERSION")
        except psycopg.OperationalError:
            return False
        return True

    def ask(self, question: str) -> list[Mapping[str, str]]:
        """Put a question as ``SHOW POOLS`` to the console; each row by its column names."""
        console = psycopg.connect(self.database_url(CONSOLE), connect_timeout=2, autocommit=True)
        with console, psycopg.ClientCursor(console, row_factory=psycopg.rows.dict_row) as cursor:
            return list(cursor.execute(question).fetchall())
