"""Claims and leases in two tables of a SQL database: PostgreSQL, SQLite, MariaDB.

The first copy of a run costs one INSERT. Only a second message with the same key reads the claim, decides in Python and
writes by compare-and-set on (state, execution). Statements run in autocommit; no transaction stays open. All instants
are ms of the server's clock.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_wheelbeat.errors import ClaimStoreDown
from celery_wheelbeat.worker.claims import Claim, ClaimRequest, State, Verdict, decide
from celery_wheelbeat.worker.overlap import Lease
from celery_wheelbeat.worker.stores.connection import Losses
from celery_wheelbeat.worker.stores.connections import Connections

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_wheelbeat.worker.stores.connection import Line, StoreAnswer

ROUNDS = 10
"""Maximum rounds of read and compare-and-set; a round fails only if another worker has changed the row meanwhile."""
FENCE_REMEMBERED_MS = 86_400_000

CREATE_CLAIMS = """
CREATE TABLE IF NOT EXISTS wheelbeat_claim (
  id VARCHAR(32) NOT NULL PRIMARY KEY, state VARCHAR(1) NOT NULL, nonce VARCHAR(16) NOT NULL,
  execution VARCHAR(8) NOT NULL, digest VARCHAR(8) NOT NULL,
  started_ms BIGINT NOT NULL, ended_ms BIGINT NOT NULL, expires_ms BIGINT NOT NULL,
  digest_rest VARCHAR(8) DEFAULT '' NOT NULL)"""
TABLES = "SELECT 1 FROM wheelbeat_claim, wheelbeat_lease WHERE 1 = 0"
DIGEST_REST = "SELECT digest_rest FROM wheelbeat_claim WHERE 1 = 0"
ADD_DIGEST_REST = "ALTER TABLE wheelbeat_claim ADD COLUMN digest_rest VARCHAR(8) DEFAULT '' NOT NULL"
"""An older release, which may run beside this one, lacks this column and compares only the digest's first half."""
CREATE_LEASES = """
CREATE TABLE IF NOT EXISTS wheelbeat_lease (
  id VARCHAR(32) NOT NULL PRIMARY KEY, owner VARCHAR(80) NOT NULL, fence BIGINT NOT NULL, until_ms BIGINT NOT NULL)"""

INSERT = """
INTO wheelbeat_claim (id, state, nonce, execution, digest, digest_rest, started_ms, ended_ms, expires_ms)
VALUES (%s, 'R', %s, %s, %s, %s, {now}, 0, {now} + %s)"""
SELECT = """
SELECT state, nonce, execution, digest, digest_rest, started_ms, ended_ms, expires_ms - {now}
FROM wheelbeat_claim WHERE id = %s"""
REPLACE = """
UPDATE wheelbeat_claim SET state = 'R', nonce = %s, execution = %s, digest = %s, digest_rest = %s,
  started_ms = {now}, ended_ms = 0, expires_ms = {now} + %s
WHERE id = %s AND state = %s AND execution = %s"""
MARK = """
UPDATE wheelbeat_claim SET state = %s, ended_ms = {now} WHERE id = %s AND execution = %s"""
PROLONG = """
UPDATE wheelbeat_claim SET expires_ms = {now} + %s WHERE id = %s AND nonce = %s AND expires_ms > {now}"""
# fence first: MariaDB assigns left to right; after the owner it would see the new one
ACQUIRE = """
UPDATE wheelbeat_lease SET
  fence = CASE WHEN owner = %s AND until_ms > {now} THEN fence WHEN fence >= {now} THEN fence + 1 ELSE {now} END,
  owner = %s, until_ms = {now} + %s
WHERE id = %s AND (owner = %s OR until_ms <= {now})"""
INSERT_LEASE = """
INTO wheelbeat_lease (id, owner, fence, until_ms) VALUES (%s, %s, {now}, {now} + %s)"""
HOLDER = "SELECT owner, fence FROM wheelbeat_lease WHERE id = %s"
RENEW = "UPDATE wheelbeat_lease SET until_ms = {now} + %s WHERE id = %s AND owner = %s"
RELEASE = "UPDATE wheelbeat_lease SET owner = '', until_ms = 0 WHERE id = %s AND owner = %s"


class Dialect(NamedTuple):
    """SQL that differs between the databases."""

    now: str
    """The server's clock in ms since the Unix epoch, as an expression."""
    insert: tuple[str, str]
    """Text before and after INTO … VALUES … that makes the INSERT a no-op if the row exists."""
    purge: str
    """Delete up to ``%s`` rows whose ``{until}`` is ``%s`` ms past, the oldest first, without locking any other row.

    The bound of the search must be a constant for the database, which then reads only expired rows, in a table with
    millions of live ones.
    """
    create_index: str
    placeholder: str = "%s"

    def write(self, statement: str) -> str:
        """Insert the server's clock and the driver's placeholders into ``statement``."""
        return statement.replace("{now}", self.now).replace("%s", self.placeholder).strip()

    def purge_of(self, table: str, until: str) -> str:
        """Return ``purge`` for a table and its column of expiry."""
        return self.write(self.purge.replace("{table}", table).replace("{until}", until))


POSTGRES = Dialect(
    now="(extract(epoch from statement_timestamp()) * 1000)::bigint",
    insert=("INSERT", " ON CONFLICT DO NOTHING"),
    purge="DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {table} WHERE {until} <= {now} - %s "
    "ORDER BY {until} LIMIT %s FOR UPDATE SKIP LOCKED))",
    create_index="CREATE INDEX IF NOT EXISTS wheelbeat_claim_expires ON wheelbeat_claim (expires_ms)",
)
SQLITE = Dialect(
    now="CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
    insert=("INSERT OR IGNORE", ""),
    purge="DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE {until} <= {now} - %s "
    "ORDER BY {until} LIMIT %s)",
    create_index="CREATE INDEX IF NOT EXISTS wheelbeat_claim_expires ON wheelbeat_claim (expires_ms)",
    placeholder="?",
)
MARIADB = Dialect(
    now="FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)",
    insert=("INSERT IGNORE", ""),
    purge="DELETE FROM {table} WHERE {until} <= {now} - %s ORDER BY {until} LIMIT %s",
    create_index="CREATE INDEX IF NOT EXISTS wheelbeat_claim_expires ON wheelbeat_claim (expires_ms)",
)


class SqlStore:
    """Claims and leases over lines; ``connect()`` opens one, ``errors`` are the driver's, ``losses`` the lines' own.

    A claim takes one statement for the first copy of a run, two for a further copy, three for a redelivery.
    """

    best_effort = ""

    def __init__(
        self,
        where: str,
        dialect: Dialect,
        connect: Callable[[], Line],
        errors: tuple[type[Exception], ...],
        *,
        losses: Losses | None = None,
    ) -> None:
        self._where = where
        self._dialect = dialect
        self._connections: Connections[Line] = Connections(where, connect, lambda line: line.close(), errors)
        self.losses = losses or Losses()
        write, (before, after) = dialect.write, dialect.insert
        self._insert, self._select, self._replace = write(before + INSERT + after), write(SELECT), write(REPLACE)
        self._mark, self._prolong, self._acquire = write(MARK), write(PROLONG), write(ACQUIRE)
        self._insert_lease, self._holder = write(before + INSERT_LEASE + after), write(HOLDER)
        self._renew, self._release = write(RENEW), write(RELEASE)
        self._purge_claims = dialect.purge_of("wheelbeat_claim", "expires_ms")
        self._purge_leases = dialect.purge_of("wheelbeat_lease", "until_ms")

    def claim(self, key: str, asked: ClaimRequest, ttl_s: int) -> Verdict:
        """See ``ClaimStore``."""
        return self._connections.lend(self._claim, key, asked, ttl_s)

    def _claim(self, line: Line, key: str, asked: ClaimRequest, ttl_s: int) -> Verdict:
        mine = (asked.nonce, asked.execution, asked.digest[:8], asked.digest[8:])
        for _ in range(ROUNDS):
            if line.ask(self._insert, key, *mine, ttl_s * 1000).written == 1:
                return Verdict.ELECTED
            row = line.ask(self._select, key).row
            if row is None:
                continue  # purged meanwhile
            verdict = decide(_claim_of(row), asked)
            if verdict is Verdict.MINE or not verdict.runs:
                return verdict
            if line.ask(self._replace, *mine, ttl_s * 1000, key, row[0], row[2]).written == 1:
                return verdict
        raise ClaimStoreDown(f"the claim store {self._where} changed claim {key} {ROUNDS} times while it was decided")

    def mark(self, key: str, execution: str, state: State) -> bool:
        """See ``ClaimStore``."""
        return self._execute(self._mark, state.letter, key, execution) == 1

    def post(self, key: str, execution: str, state: State) -> None:
        """See ``ClaimStore``."""
        self._connections.lend(_post, self._mark, state.letter, key, execution)

    def prolong(self, key: str, nonce: str, ttl_s: int) -> bool:
        """See ``ClaimStore``."""
        return self._execute(self._prolong, ttl_s * 1000, key, nonce) == 1

    def read(self, key: str) -> Claim | None:
        """See ``ClaimStore``."""
        row = self._connections.lend(_ask, self._select, key).row
        return None if row is None else _claim_of(row)

    def prepare(self) -> None:
        """See ``ClaimStore``: tables that a migration has created are not changed."""
        if not self._knows(TABLES):  # no tables, or no server: the next statement shows which
            for statement in (CREATE_CLAIMS, CREATE_LEASES, self._dialect.create_index):
                self._create(statement)
        if not self._knows(DIGEST_REST):
            try:
                self._execute(ADD_DIGEST_REST)
            except ClaimStoreDown:
                if not self._knows(DIGEST_REST):  # else another worker was faster
                    raise

    def _knows(self, statement: str) -> bool:
        try:
            self._execute(statement)
        except ClaimStoreDown:
            return False
        return True

    def purge(self, limit: int) -> int:
        """See ``ClaimStore``."""
        gone = self._execute(self._purge_claims, 0, limit)
        if gone < limit:
            gone += self._execute(self._purge_leases, FENCE_REMEMBERED_MS, limit - gone)
        return gone

    def acquire(self, name: str, owner: str, lease_s: float) -> Lease:
        """See ``LeaseStore``."""
        return self._connections.lend(self._take, _lease_id(name), owner, round(lease_s * 1000))

    def _take(self, line: Line, key: str, owner: str, lease_ms: int) -> Lease:
        if line.ask(self._acquire, owner, owner, lease_ms, key, owner).written != 1:
            line.ask(self._insert_lease, key, owner, lease_ms)
        row = line.ask(self._holder, key).row
        return Lease(row is not None and row[0] == owner, int(row[1]) if row else 0)

    def renew(self, name: str, owner: str, lease_s: float) -> bool:
        """See ``LeaseStore``."""
        return self._execute(self._renew, round(lease_s * 1000), _lease_id(name), owner) == 1

    def release(self, name: str, owner: str) -> None:
        """See ``LeaseStore``."""
        self._execute(self._release, _lease_id(name), owner)

    def close(self) -> None:
        """Close the free connections of this process."""
        self._connections.close()

    def _execute(self, statement: str, *values: object) -> int:
        return self._connections.lend(_ask, statement, *values).written

    def _create(self, statement: str) -> None:
        for last in (False, True):
            try:
                self._execute(statement)
            except ClaimStoreDown:
                if last:  # two workers that start together may collide once on PostgreSQL, despite IF NOT EXISTS
                    raise
            else:
                return


def _ask(line: Line, statement: str, *values: object) -> StoreAnswer:
    return line.ask(statement, *values)


def _post(line: Line, statement: str, *values: object) -> None:
    line.post(statement, *values)


def _claim_of(row: tuple[Any, ...]) -> Claim | None:
    """Return the claim of a row, or None if it has expired."""
    state, nonce, execution, digest, rest, started_ms, ended_ms, left_ms = row
    if int(left_ms) <= 0:
        return None
    return Claim(State(state), nonce, execution, digest + rest, int(started_ms), int(ended_ms))


def _lease_id(name: str) -> str:
    return blake2b(name.encode(errors="surrogatepass"), digest_size=16).hexdigest()
