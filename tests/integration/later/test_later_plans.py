"""What the statements of one-off runs on PostgreSQL read: by index, and only the parts of the seconds asked for."""

from __future__ import annotations

import json
import re
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from celery_wheelbeat.later import ahead
from celery_wheelbeat.later.connections import caller_of
from celery_wheelbeat.later.open_seconds import Resume
from celery_wheelbeat.later.readers.postgres import PostgresReader
from celery_wheelbeat.later.ring import DAY_S, LAST_MS, PARTS, due_id, parts_between, parts_of, table_of
from celery_wheelbeat.later.run import LaterRun
from celery_wheelbeat.later.tables import create_tables, drop_tables
from celery_wheelbeat.later.writers import Wanted
from celery_wheelbeat.later.writers.postgres import PostgresWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

pytestmark = pytest.mark.postgres

DAYS = (0.01, 0.5, 1, 5, 29, 40, 100, 700, 800)
ROWS = 1_000
"""In each of the DAYS."""
LAST_S = LAST_MS // 1000


_QUERY = re.compile(r"^(?:--.*\n)*(?:DECLARE \w+ NO SCROLL CURSOR FOR\s+)?((?:SELECT|WITH)\s.*)", re.DOTALL)
"""A statement that reads, also through a cursor."""


class Explained:
    """A connection of an application or of a beat which keeps the plan of every statement that reads the table."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.vendor = "postgresql"
        self.plans: list[Mapping[str, Any]] = []

    def rows(self, statement: str, parameters: Mapping[str, Any]) -> list[Sequence[Any]]:
        cursor = self.execute(statement, parameters)
        return list(cursor.fetchall()) if cursor.description else []

    def execute(self, statement: str, parameters: Any = None) -> Any:
        given = [parameters] if parameters else []
        query = _QUERY.match(statement)
        if query is not None and "wheelbeat_later" in query[1]:
            ((plan,),) = self._connection.execute(f"EXPLAIN (FORMAT JSON) {query[1]}", *given).fetchone()
            self.plans.append((json.loads(plan) if isinstance(plan, str) else plan)["Plan"])
        return self._connection.execute(statement, *given)

    def scans(self) -> set[tuple[str, str]]:
        """Return (kind of scan, part) of the statement that read the table since the last call."""
        plan = self.plans.pop()
        assert not self.plans
        return set(_scans(plan))


class _ExplainedCursors:
    """The same, as a connection with cursors."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.explained = Explained(connection)

    def cursor(self) -> Any:
        return _ExplainedCursor(self.explained)

    def close(self) -> None:
        self._connection.close()


class _ExplainedCursor:
    def __init__(self, explained: Explained) -> None:
        self._explained = explained
        self._cursor: Any = None

    @property
    def description(self) -> Any:
        return self._cursor.description

    def execute(self, *given: Any) -> None:
        self._cursor = self._explained.execute(*given)

    def nextset(self) -> Any:
        return self._cursor.nextset()

    def fetchall(self) -> Any:
        return self._cursor.fetchall()

    def close(self) -> None:
        self._cursor.close()


def _nodes(node: Mapping[str, Any], kind: str) -> Iterator[Mapping[str, Any]]:
    if node["Node Type"] == kind:
        yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child, kind)


def _scans(node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "Scan" in node["Node Type"] and node.get("Relation Name", "").startswith("wheelbeat_later"):
        yield node["Node Type"], node["Relation Name"]
    for child in node.get("Plans", ()):
        yield from _scans(child)


FILL = """
INSERT INTO wheelbeat_later (part, second, id, at_ms, key, task, args, kwargs)
SELECT part, 1000 + i, gen_random_uuid(), (1000 + i) * 1000, 'old ' || part || '-' || i, 'proj.old', '[]', '{}'
FROM generate_series(0, 58) AS part, generate_series(1, 2000) AS i
"""
"""Old rows in every part: PostgreSQL reads a part that fits into a few pages without its index, and rightly so."""


def _fill(connection: Any) -> list[LaterRun]:
    """Insert ROWS runs around each of DAYS; returns the first of each."""
    connection.execute(FILL)
    now_ms = int(time.time() * 1000)
    runs = [
        LaterRun(str(due_id(at_ms)), at_ms, f"{days}-{n}", "proj.remind", "[]", "{}", "{}")
        for days in DAYS
        for n, at_ms in enumerate(range(now_ms + int(days * DAY_S * 1000), 10**15, 100)[:ROWS])
    ]
    PostgresWriter(caller_of(connection)).insert(runs)
    connection.commit()
    connection.execute("ANALYZE wheelbeat_later")
    connection.commit()
    return runs[::ROWS]


@pytest.fixture(scope="module")
def filled(postgres_url: str) -> Iterator[tuple[Any, list[LaterRun]]]:
    with closing(psycopg.connect(postgres_url)) as connection:
        create_tables(connection)
        yield connection, _fill(connection)
        connection.rollback()
        drop_tables(connection)
        connection.commit()


@pytest.fixture
def explained(filled: tuple[Any, list[LaterRun]]) -> Iterator[Explained]:
    yield Explained(filled[0])
    filled[0].rollback()


def indexed(scans: set[tuple[str, str]]) -> set[str]:
    """Return the parts of ``scans``, none of which reads a whole part."""
    assert {kind for kind, _ in scans} <= {"Index Scan", "Index Only Scan", "Bitmap Heap Scan"}, scans
    return {part for _, part in scans}


def tables_of(second: int) -> set[str]:
    return set(map(table_of, parts_of(second)))


def tables_between(from_s: int, until_s: int) -> set[str]:
    """Three tables, or four around midnight."""
    return set(map(table_of, parts_between(from_s, until_s)))


def test_a_run_is_found_cancelled_and_listed_in_three_parts(
    filled: tuple[Any, list[LaterRun]], explained: Explained
) -> None:
    writer = PostgresWriter(explained)
    for run in filled[1]:
        second = run.at_ms // 1000
        found = writer.of_id(run.id, lock=False)
        assert found is not None
        assert found.run == run
        assert indexed(explained.scans()) == tables_of(second)
        (first, *_) = writer.listed(Wanted(second, second + 60, 10))
        assert first.run.at_ms // 1000 == second
        assert indexed(explained.scans()) == tables_between(second, second + 60)
        assert writer.count(second, second + 60) in range(590, 611)
        assert indexed(explained.scans()) == tables_between(second, second + 60)
        assert writer.cancel(run.id) is True
        assert indexed(explained.scans()) == tables_of(second)


def test_a_list_of_a_month_is_read_in_order_from_its_parts(
    filled: tuple[Any, list[LaterRun]], explained: Explained
) -> None:
    from_s = filled[1][0].at_ms // 1000
    found = PostgresWriter(explained).listed(Wanted(from_s, from_s + 30 * DAY_S, 100))
    assert [row.run.at_ms for row in found] == sorted(row.run.at_ms for row in found)
    assert len(found) == 100
    assert not list(_nodes(explained.plans[-1], "Sort")), "the limit ends the read"
    assert len(indexed(explained.scans())) in (31 + 1 + 1, 31 + 2 + 1)


def test_a_key_is_found_by_its_index_in_every_part(filled: tuple[Any, list[LaterRun]], explained: Explained) -> None:
    writer = PostgresWriter(explained)
    found = writer.of_key(str(filled[1][2].key), lock=True)
    assert found is not None
    assert found.run == filled[1][2]
    assert len(indexed(explained.scans())) == PARTS
    (listed,) = writer.listed(Wanted(0, 2 * 10**9 * 2, 10, key=filled[1][2].key))
    assert listed == found
    assert len(indexed(explained.scans())) == PARTS


def test_a_beat_reads_its_seconds_by_index_from_three_parts(
    filled: tuple[Any, list[LaterRun]], postgres_url: str
) -> None:
    opened: list[_ExplainedCursors] = []

    def connect() -> Any:
        opened.append(_ExplainedCursors(psycopg.connect(postgres_url, autocommit=True)))
        return opened[-1]

    first_s = filled[1][0].at_ms // 1000
    reader = PostgresReader(connect, Resume(first_s - 1, first_s - 1, None))
    with closing(reader):
        now_s = reader.poll(0).now_s
        polls = [reader.poll(first_s - now_s + 9) for _ in range(3)]  # the first one opens ten seconds
    assert sum(len(read.rows) for read in polls) in range(90, ROWS // 2), "a few seconds more if this takes seconds"
    (connection,) = opened
    reads = [set(_scans(plan)) for plan in connection.explained.plans]
    parts = {part for scans in reads for part in indexed(scans)}
    assert tables_between(first_s, first_s + 9) <= parts <= tables_between(first_s, first_s + 60)
    assert any("(xid >= " in json.dumps(plan) for plan in connection.explained.plans), "late rows are looked for"
    assert max(map(len, reads)) <= len(tables_between(first_s, first_s + 60))
    assert len([scans for scans in reads if scans]) <= 2 * 3, "one for late rows and one for new seconds, each poll"


def test_pieces_follow_the_order_of_transaction_ids(filled: tuple[Any, list[LaterRun]], postgres_url: str) -> None:
    second = filled[1][1].at_ms // 1000 - 40
    insert = """INSERT INTO wheelbeat_later (part, second, xid, id, at_ms, task, args, kwargs)
        SELECT %s, %s, (i %% 130)::text::xid8, gen_random_uuid(), %s, 'proj.pieces', i::text, '{}'
        FROM generate_series(1, 2000) AS i"""
    with psycopg.connect(postgres_url) as connection:
        connection.execute(insert, (parts_of(second)[0], second, second * 1000))
    reader = PostgresReader(
        lambda: psycopg.connect(postgres_url, autocommit=True), Resume(second - 1, second - 1, None)
    )
    found: list[str] = []
    with closing(reader):
        more = True
        while more:
            read = reader.poll(second - int(time.time()) + 2, 100_000)
            found += [row.args or "" for row in read.rows if row.task == "proj.pieces"]
            more = read.more
            if len(found) < 1_000:
                reader.pause()  # the next piece is found by its place, not by the cursor
    assert sorted(map(int, found)) == list(range(1, 2_001))


@pytest.mark.parametrize("task", [None, "proj.remind", "proj.none"])
def test_a_search_reads_as_many_rows_as_it_may(
    filled: tuple[Any, list[LaterRun]], explained: Explained, monkeypatch: pytest.MonkeyPatch, task: str | None
) -> None:
    monkeypatch.setattr(ahead, "SEARCHED_MAX", 300)
    from_s = filled[1][0].at_ms // 1000
    page = ahead.search(explained, ahead.Search(from_s, LAST_S, 100, task))
    assert len(page.rows) == (0 if task == "proj.none" else 100)
    assert page.go_on_s is not None
    assert page.go_on_s > from_s
    plan = explained.plans[-1]
    assert len(indexed(explained.scans())) == PARTS
    (merge,) = _nodes(plan, "Merge Append")
    assert not list(_nodes(merge, "Sort")), "the limit ends the read"


def test_counts_stop_at_their_limit(
    filled: tuple[Any, list[LaterRun]], explained: Explained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "COUNTED_MAX", 50)
    from_s = filled[1][0].at_ms // 1000
    minutes = [ahead.Period(from_s + 60 * n, from_s + 60 * (n + 1)) for n in range(60)]
    found = ahead.counts(explained, minutes)
    assert found[0].precision is ahead.Precision.ESTIMATE
    assert 300 < found[0].runs < 1_200
    assert found[-1] == ahead.Count(0, ahead.Precision.EXACT)
    plan = explained.plans[-1]
    assert indexed(explained.scans()) == tables_between(from_s, from_s + 3_600)
    assert not list(_nodes(plan, "Sort")), "the limit ends each count"


def test_the_counts_of_all_time_are_read_from_indexes(
    filled: tuple[Any, list[LaterRun]], explained: Explained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "COUNTED_MAX", 50)
    from_s = filled[1][0].at_ms // 1000
    (whole,) = ahead.counts(explained, [ahead.Period(from_s, LAST_S)])
    assert whole.precision is ahead.Precision.ESTIMATE
    assert abs(whole.runs - len(DAYS) * ROWS) < 3 * ROWS, "the planner's estimate"
    assert len(indexed(explained.scans())) == PARTS
