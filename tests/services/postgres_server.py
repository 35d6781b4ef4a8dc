"""A private PostgreSQL server: any setting, crash and restart, a streaming standby and its promotion."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from .server import PrivateServer, ServiceError, program, wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

BINARIES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin")


class PrivatePostgres(PrivateServer):
    """One cluster of its own with trust authentication on loopback, user ``postgres``, database ``postgres``."""

    name = "postgres"
    users = ("postgres",)
    stop_signal = signal.SIGINT
    """Fast shutdown: open sessions are ended."""

    def __init__(self, port: int | None = None, *, fsync: bool = False, **settings: str) -> None:
        super().__init__(port)
        self.data = self.folder / "data"
        durable = "on" if fsync else "off"
        self.settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
            "fsync": durable,
            "synchronous_commit": durable,
            "full_page_writes": durable,
            "shared_buffers": "32MB",
            "max_connections": "60",
            **settings,
        }

    @property
    def url(self) -> str:
        return self.database_url("postgres")

    def database_url(self, database: str, user: str = "postgres") -> str:
        """URL of another database of this server."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        if not (self.data / "PG_VERSION").exists():
            self._initialise()
        super().start()

    def command(self) -> Sequence[str]:
        words = [_binary("postgres"), "-D", str(self.data), "-p", str(self.port)]
        for key, value in self.settings.items():
            words += ["-c", f"{key}={value}"]
        return words

    def answers(self) -> bool:
        try:
            with psycopg.connect(self.url, connect_timeout=2, autocommit=True) as connection:
                connection.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def standby(self) -> PrivatePostgres:
        """Return a streaming, asynchronous standby of this running server, not yet started."""
        copy = PrivatePostgres(**self.settings)
        copy.settings["unix_socket_directories"] = str(copy.folder)
        source = f"host=127.0.0.1 port={self.port} user=postgres"
        copy.run(_binary("pg_basebackup"), "-D", str(copy.data), "-d", source, "--write-recovery-conf", "-c", "fast")
        return copy

    def promote(self) -> None:
        """Make a standby the primary of a new timeline, and wait until it takes writes."""
        self.run(_binary("pg_ctl"), "promote", "-w", "-D", str(self.data))
        wait_until(self._takes_writes, f"promotion of the standby on port {self.port}")

    def dump(self, database: str, file: str) -> None:
        """Write a dump of ``database`` into ``file`` in the server's folder."""
        self.run(_binary("pg_dump"), "-d", self.database_url(database), "-f", file)

    def restore(self, database: str, file: str) -> None:
        """Fill an empty ``database`` from a dump."""
        quiet = ("-q", "-v", "ON_ERROR_STOP=1")
        self.run(_binary("psql"), *quiet, "-d", self.database_url(database), "-f", file)

    def _takes_writes(self) -> bool:
        with psycopg.connect(self.url, connect_timeout=30, autocommit=True) as connection:
            row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
        return row is not None and not row[0]

    def _initialise(self) -> None:
        self.run(
            *(_binary("initdb"), "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8"),
            *("--locale=C", "--no-sync"),
        )


def _binary(name: str) -> str:
    try:
        return program(name, *BINARIES, package="postgresql")
    except ServiceError:
        beside = Path(program("postgres", *BINARIES, package="postgresql")).resolve().parent / name
        if beside.exists():
            return str(beside)
        raise
