"""The load of a large table as columns: no edit made while it runs is lost, and errors restart it."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg
import pytest
from support.beat.loading import ENTRY, START_MS, LoadingBeat

from celery_wheelbeat.errors import SourceError
from celery_wheelbeat.jobs.compile import compile_rows
from celery_wheelbeat.sources.changelog import bulk_load as bulk
from celery_wheelbeat.sources.changelog import follower
from celery_wheelbeat.sources.changelog.table_pass import Purpose
from celery_wheelbeat.sources.databases.packed import LAYOUT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.changelog.places import Place

pytestmark = pytest.mark.postgres


@pytest.fixture
def beat(postgres: Place) -> Any:
    """A beat that has read nothing yet."""
    beat = LoadingBeat(postgres)
    yield beat
    beat.close()


def fill(place: Place, count: int, ids: str = "n") -> None:
    """Write ``count`` monitors, without telling the change log."""
    with untriggered(place):
        place.execute(
            "INSERT INTO wheelbeat_monitor (id, name, task, kwargs, interval_ms)"
            f" SELECT {ids}, 'm' || n, 'proj.check', json_build_object('n', n)::text, 60000 * (1 + n %% 3)"
            " FROM generate_series(1::bigint, %s) n",
            count,
        )
    place.execute("ANALYZE wheelbeat_monitor")


@contextmanager
def untriggered(place: Place) -> Iterator[None]:
    """Let the change log not notice what the block writes."""
    names = [
        row[0]
        for row in place.execute(
            "SELECT tgname FROM pg_trigger WHERE tgrelid = 'wheelbeat_monitor'::regclass AND NOT tgisinternal"
        )
    ]
    place.execute("ALTER TABLE wheelbeat_monitor DISABLE TRIGGER USER")
    yield
    place.execute("ALTER TABLE wheelbeat_monitor " + ", ".join(f'ENABLE ALWAYS TRIGGER "{name}"' for name in names))


def assert_engine_is_the_table(beat: LoadingBeat, place: Place) -> None:
    """Names, arguments and intervals of every enabled monitor, and no other job."""
    rows = place.execute(
        "SELECT id, name, '[' || args || ', ' || kwargs || ']', interval_ms FROM wheelbeat_monitor"
        " WHERE enabled ORDER BY id"
    )
    ids = np.array([row[0] for row in rows], np.int64)
    views = beat.engine.lookup(ids)
    assert all(view is not None for view in views)
    found = [(view.id, view.name, view.payload.decode()) for view in views if view is not None]
    assert found == [row[:3] for row in rows]
    stored = {
        int(job_id): int(interval)
        for shard in beat.engine.shards
        for job_id, interval in zip(*shard.table.living_rows()[:2], strict=True)
    }
    assert {row[0]: row[3] for row in rows} == {job_id: stored[job_id] for job_id in ids.tolist()}
    (count,) = place.execute("SELECT count(*) FROM wheelbeat_monitor")[0]
    assert len(beat.engine) == count


class Editor:
    """Edits at random places of the table, through a connection of its own.

    Every editor has ids of its own (``turn`` of ``turns``), so that none waits for the locks of another.
    """

    def __init__(self, place: Place, rows: int, *, turn: int) -> None:
        self.connection = psycopg.connect(**place.connection.get_connection_params() | {"cursor_factory": None})
        self.rng = random.Random(turn)
        self.ids = range(1 + turn, rows, 2)
        self.new_id = rows + 1 + turn
        self.edits = 0

    def edit(self, count: int, *, commit: bool = True) -> None:
        """Change ``count`` monitors: most are updated, some deleted, some new."""
        new = [self.new_id + 2 * n for n in range(count // 20)]
        self.new_id += 2 * len(new)
        picked = self.rng.sample(self.ids, count - len(new))
        gone, changed = picked[: count // 20], picked[count // 20 :]
        execute = self.connection.execute
        execute("DELETE FROM wheelbeat_monitor WHERE id = ANY(%s)", (gone,))
        execute(
            "UPDATE wheelbeat_monitor SET kwargs = '{\"v\": ' || %s || '}', interval_ms = interval_ms + 60000"
            " WHERE id = ANY(%s)",
            (self.edits, changed),
        )
        execute(
            "INSERT INTO wheelbeat_monitor (id, name, task, interval_ms)"
            " SELECT n, 'new' || n, 'proj.check', 60000 FROM unnest(%s) n",
            (new,),
        )
        self.edits += count
        if commit:
            self.connection.commit()


def edit_while_loading(beat: LoadingBeat, place: Place, rows: int, *, at_once: int) -> None:
    """Edit 10,000 of ``rows`` monitors during their load, ``at_once`` after each step."""
    fill(place, rows)
    early, late = Editor(place, rows, turn=0), Editor(place, rows, turn=1)

    def edit() -> None:
        if late.edits < 10_000:
            late.edit(at_once)
        if late.edits == 5_000:
            early.connection.commit()

    with early.connection, late.connection:
        early.edit(100, commit=False)  # began before the load, commits in the middle of it
        beat.load(between=edit)
    assert late.edits == 10_000
    assert sum(beat.loaded_rows) > 0.98 * rows
    assert_engine_is_the_table(beat, place)
    assert beat.follower.findings.drift_found == 0


def test_ten_thousand_edits_while_two_hundred_thousand_monitors_load(
    beat: LoadingBeat, postgres: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "BLOCK_ROWS", 2_000)
    monkeypatch.setattr(bulk, "TOGETHER", 1)
    edit_while_loading(beat, postgres, 200_000, at_once=100)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_ten_thousand_edits_while_a_million_monitors_load(
    beat: LoadingBeat, postgres: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "BLOCK_ROWS", 2_000)
    monkeypatch.setattr(bulk, "TOGETHER", 1)
    beat.deadline_s = 1_200.0
    edit_while_loading(beat, postgres, 1_000_000, at_once=20)


def test_the_reconcile_finds_nothing_to_mend_after_a_load(
    beat: LoadingBeat, postgres: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_wheelbeat.sources.changelog.table_pass.RECONCILE_ROWS", 5_000)
    monkeypatch.setattr("celery_wheelbeat.sources.changelog.table_pass.CORE_SHARE", 1e9)
    fill(postgres, 20_000)
    postgres.execute("UPDATE wheelbeat_monitor SET start_at = now() WHERE id % 100 = 0")
    beat.load()
    with untriggered(postgres):
        postgres.execute("UPDATE wheelbeat_monitor SET kwargs = '{}' WHERE id IN (5, 100)")
    rounds = beat.follower.findings.reconcile_rounds
    beat.until(lambda: beat.follower.findings.reconcile_rounds == rounds + 2)  # one that began after the edit
    assert beat.follower.findings.reconciled_untriggered == 2
    assert beat.follower.findings.drift_found == 0
    assert_engine_is_the_table(beat, postgres)


RARE_AND_BROKEN = {
    10: "start_at = now()", 11: "incident_interval_ms = 10000, incident_until = now()", 12: "enabled = false",
    13: "interval_ms = NULL, cron = '*/5 * * * *'", 14: "interval_ms = NULL, cron = 'nonsense'",
    15: "args = ' [1]'", 16: "args = '{}'", 17: f"name = '{ENTRY}'", 18: "jitter_s = 0", 19: "jitter_s = 121",
    20: "interval_ms = NULL, once_at = now() + interval '1 day'", 21: "finished_at = now()",
    22: "kwargs = json_build_object('k', repeat('x', 20000))",
    23: "kwargs = json_build_object('k', repeat('x', 300000))",
    24: "name = '\u00a0'", 25: "args = '[{\"__type__\": \"uuid\", \"__value__\": 1}]'",
}  # fmt: skip


def make_rare_and_broken(place: Place) -> None:
    """Give some monitors what few have, and others what none may have."""
    for job_id, assignment in RARE_AND_BROKEN.items():
        place.execute(f"UPDATE wheelbeat_monitor SET {assignment} WHERE id = {job_id}")


def assert_as_compiled_one_by_one(beat: LoadingBeat) -> None:
    """The engine holds what the compiler of single rows makes of the monitors up to 10,000."""
    expected = compile_rows(beat.source.fetch(range(1, 10_001)), crons=beat.engine.crons, entry_names=(ENTRY,))
    assert sorted(expected.refused) == [14, 16, 17, 19, 23, 24, 25]
    assert sorted(beat.definitions.quarantine.ids()) == sorted(expected.refused)
    assert len(beat.engine) == len(expected.batch)
    ends = np.cumsum(expected.batch.lengths)
    for at, job_id in enumerate(expected.batch.ids.tolist()):
        if job_id not in (12, 21):
            (view,) = beat.engine.lookup([job_id])
            assert view is not None
            assert view.payload == expected.batch.payload[ends[at] - expected.batch.lengths[at] : ends[at]]
            assert (beat.engine.routes[view.route_index], view.flags) == (
                expected.batch.route_at(at),
                expected.batch.flags[at],
            )
    assert beat.engine.lookup([12, 21]) == [None, None]
    for job_id, first in ((13, 1_900_000_200_000), (18, 1_900_000_020_000)):
        assert beat.engine.next_fire(job_id, START_MS) in range(first, first + 30_000)


def test_rare_and_broken_monitors_among_plain_ones(beat: LoadingBeat, postgres: Place) -> None:
    fill(postgres, 5_000)
    make_rare_and_broken(postgres)
    beat.load()
    assert_as_compiled_one_by_one(beat)


def test_very_many_edits_are_read_as_columns_and_mean_the_same(
    beat: LoadingBeat, postgres: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "MANY_ROWS", 1_000)
    monkeypatch.setattr(follower, "BLOCK_ROWS", 2_000)
    fill(postgres, 6_000)
    postgres.execute("UPDATE wheelbeat_monitor SET interval_ms = NULL, cron = 'nonsense' WHERE id IN (30, 31)")
    beat.load()
    assert sorted(beat.definitions.quarantine.ids()) == [30, 31]
    fetched: list[int] = []
    fetch = beat.source.fetch
    monkeypatch.setattr(beat.source, "fetch", lambda ids: fetched.extend(ids) or fetch(ids))
    postgres.execute("BEGIN")
    postgres.execute(
        "UPDATE wheelbeat_monitor SET kwargs = '{\"edited\": 1}', interval_ms = 60000 * (1 + id % 3), cron = ''"
    )
    make_rare_and_broken(postgres)
    postgres.execute("DELETE FROM wheelbeat_monitor WHERE id > 5900 OR id = 31")
    postgres.execute(
        "INSERT INTO wheelbeat_monitor (id, name, task, interval_ms)"
        " SELECT n, 'new' || n, 'proj.check', 60000 FROM generate_series(7001, 7100) n"
    )
    postgres.execute("COMMIT")
    known = beat.follower.findings.changes
    beat.until(lambda: beat.follower.findings.changes == known + 6_100)
    assert len(fetched) < 1_000  # the rest of less than MANY_ROWS
    monkeypatch.setattr(beat.source, "fetch", fetch)
    assert_as_compiled_one_by_one(beat)
    assert beat.engine.lookup([5_901, 31]) == [None, None]
    assert [view is not None for view in beat.engine.lookup([30, 5_900, 7_001, 7_100])] == [True] * 4
    rounds = beat.follower.findings.reconcile_rounds
    beat.until(lambda: beat.follower.findings.reconcile_rounds == rounds + 2)  # one that began after the edits
    assert beat.follower.findings.reconciled_untriggered == beat.follower.findings.drift_found == 0


def test_a_connection_lost_amid_many_edits_loses_none(
    beat: LoadingBeat, postgres: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "MANY_ROWS", 1_000)
    monkeypatch.setattr(follower, "BLOCK_ROWS", 2_000)
    fill(postgres, 6_000)
    beat.load()
    postgres.execute("UPDATE wheelbeat_monitor SET interval_ms = 180000")
    beat.until(lambda: beat.follower._reader is not None)
    beat.follower._reader._session._connection.close()
    with pytest.raises(SourceError):
        beat.step()
    beat.until(lambda: not beat.follower.behind)
    assert_engine_is_the_table(beat, postgres)


def test_a_lost_connection_resumes_the_load(
    beat: LoadingBeat, postgres: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "BLOCK_ROWS", 500)
    monkeypatch.setattr(bulk, "TOGETHER", 1)
    fill(postgres, 20_000)
    beat.until(lambda: len(beat.loaded_rows) == 3)
    postgres.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'wheelbeat'"
    )
    with pytest.raises(SourceError):
        beat.load()
    beat.load()
    assert beat.follower.purpose is Purpose.RECONCILE
    assert sum(beat.loaded_rows) == 20_000, "no block twice"
    assert_engine_is_the_table(beat, postgres)


@pytest.mark.parametrize("ids", ["n * 1000003 + (n %% 7) * 4000000000000", "(n * 2654435761) %% 4294967291", "n"])
def test_ids_may_be_sparse_or_random(
    beat: LoadingBeat, postgres: Place, ids: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "BLOCK_ROWS", 700)
    fill(postgres, 10_000, ids)
    beat.load()
    assert_engine_is_the_table(beat, postgres)


@pytest.mark.parametrize("rows", [-1, 3])
def test_a_table_without_statistics_is_read_in_large_blocks(beat: LoadingBeat, postgres: Place, rows: int) -> None:
    """As it is after a bulk fill or a restored dump, until somebody has analysed it."""
    fill(postgres, 40_000)
    postgres.execute(f"UPDATE pg_class SET reltuples = {rows} WHERE oid = 'wheelbeat_monitor'::regclass")
    beat.load()
    assert sum(beat.loaded_rows) == 40_000
    assert len(beat.loaded_rows) <= 4


def test_an_empty_table_is_loaded_at_once(beat: LoadingBeat) -> None:
    beat.load()
    assert beat.loaded_rows == [0]
    assert len(beat.engine) == 0


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("column_block", ("20000", "30000")), ("column_rows", (f"'{{{','.join(map(str, range(1, 50_000, 20)))}}}'",))],
)
def test_the_plan_of_a_block_reads_the_index_in_order_and_each_row_once(
    postgres: Place, name: str, parameters: tuple[str, ...]
) -> None:
    from celery_wheelbeat.runtime.statements import read_statements

    fill(postgres, 50_000)
    statement = read_statements("celery_wheelbeat.sources.databases", "sql/postgresql.sql")[name]
    for number, parameter in enumerate(parameters, 1):
        statement = statement.replace(f"${number}", parameter)
    plan = "\n".join(row[0] for row in postgres.execute(f"EXPLAIN {statement.replace('%', '%%')}"))
    assert plan.count("wheelbeat_monitor_pkey") == 1
    assert "Seq Scan" not in plan
    assert "Parallel" not in plan
    assert name == "column_rows" or "Sort" not in plan


def test_arguments_before_keyword_arguments_of_every_row_and_of_the_first_of_a_block(
    beat: LoadingBeat, postgres: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "BLOCK_ROWS", 3)
    fill(postgres, 50)
    with untriggered(postgres):
        postgres.execute("UPDATE wheelbeat_monitor SET args = json_build_array('é', id)::text WHERE id % 4 < 2")
    beat.load()
    assert not beat.definitions.quarantine.ids()
    assert_engine_is_the_table(beat, postgres)


def test_the_column_that_is_read_comes_and_goes_with_its_migration(beat: LoadingBeat, postgres: Place) -> None:
    from django.core.management import call_command

    fill(postgres, 100)
    make_rare_and_broken(postgres)
    packed = postgres.execute("SELECT id, packed FROM wheelbeat_monitor ORDER BY id")
    rare = {job_id for job_id, content in packed if content is None}
    assert rare == {10, 11, 15, 16, 20, 21, 22, 23, 24, 25}
    assert {len(content) for _, content in packed if content is not None} == {LAYOUT.itemsize}
    call_command("migrate", "wheelbeat", "0006", verbosity=0)
    try:
        columns = "SELECT column_name FROM information_schema.columns WHERE table_name = 'wheelbeat_monitor'"
        assert not {("packed",)}.intersection(postgres.execute(columns))
    finally:
        call_command("migrate", "wheelbeat", verbosity=0)
    assert postgres.execute("SELECT id, packed FROM wheelbeat_monitor ORDER BY id") == packed
    beat.load()
    assert len(beat.engine) == 93
