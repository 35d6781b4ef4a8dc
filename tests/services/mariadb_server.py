"""A private MariaDB server."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from .server import PrivateServer, program

if TYPE_CHECKING:
    from collections.abc import Sequence

SBIN = ("/usr/sbin", "/usr/local/sbin", "/usr/libexec", "/opt/homebrew/bin")


class PrivateMariadb(PrivateServer):
    """MariaDB with user ``root`` without a password on loopback; options as ``max_connections="20"``."""

    name = "mariadb"
    users = ("mysql",)

    def __init__(self, port: int | None = None, **options: str) -> None:
        super().__init__(port)
        self.data = self.folder / "data"
        self.options = {
            "bind-address": "127.0.0.1",
            "innodb-flush-log-at-trx-commit": "0",
            "innodb-buffer-pool-size": "32M",
            "innodb-log-file-size": "16M",
            "skip-name-resolve": "ON",
            **{key.replace("_", "-"): value for key, value in options.items()},
        }

    @property
    def url(self) -> str:
        return self.database_url("mysql")

    def database_url(self, database: str) -> str:
        """URL of another database of this server."""
        return f"mysql://root@127.0.0.1:{self.port}/{database}"

    def load_zone(self, name: str) -> None:
        """Fill the tables of time zones, which are empty at first, with one zone."""
        tool = program("mariadb-tzinfo-to-sql", package="mariadb-server")
        statements = subprocess.run([tool, f"/usr/share/zoneinfo/{name}", name], capture_output=True, check=True)
        client = (program("mariadb", package="mariadb-client"), "--no-defaults", "--host=127.0.0.1", "--user=root")
        subprocess.run([*client, f"--port={self.port}", "mysql"], input=statements.stdout, check=True)

    def start(self) -> None:
        if not (self.data / "mysql").exists():
            self.run(
                *(program("mariadb-install-db", package="mariadb-server"), "--no-defaults", f"--datadir={self.data}"),
                *("--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"),
            )
        super().start()

    def command(self) -> Sequence[str]:
        words = [
            *(program("mariadbd", *SBIN, package="mariadb-server"), "--no-defaults", f"--datadir={self.data}"),
            *(f"--port={self.port}", f"--socket={self.folder / 'socket'}", f"--pid-file={self.folder / 'pid'}"),
        ]
        return [*words, *(f"--{key}={value}" for key, value in self.options.items())]

    def answers(self) -> bool:
        import MySQLdb  # not in every environment that starts servers

        try:
            MySQLdb.connect(host="127.0.0.1", port=self.port, user="root", connect_timeout=2).close()
        except MySQLdb.OperationalError:
            return False
        return os.access(self.folder, os.R_OK)
