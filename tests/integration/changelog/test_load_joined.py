"""SQLite and MariaDB read as columns: what was read is what the compiler of single rows makes of the table."""

from __future__ import annotations

import itertools
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.beat.loading import ENTRY, LoadingBeat
from support.changelog.places import Place, monitor

from celery_wheelbeat.jobs.compile import compile_rows
from celery_wheelbeat.sources.changelog import bulk_load as bulk
from celery_wheelbeat.sources.changelog import follower
from celery_wheelbeat.sources.databases import joined_columns
from celery_wheelbeat.sources.databases.joined_columns import JoinedColumns
from django_wheelbeat.models import Monitor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery_wheelbeat.jobs.definitions import DefinitionBatch

BLOCK_ROWS = 100
PLAIN = {"name": "", "task": "proj.check", "interval_ms": 60_000}


@pytest.fixture(params=[pytest.param("mysql", marks=pytest.mark.mysql), "sqlite"])
def place(request: pytest.FixtureRequest) -> Place:
    """Each of the two databases, without monitors."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def beat(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoadingBeat]:
    """A beat that has read nothing yet, and reads small blocks."""
    monkeypatch.setattr(follower, "BLOCK_ROWS", BLOCK_ROWS)
    monkeypatch.setattr(bulk, "TOGETHER", 3)
    beat = LoadingBeat(place)
    yield beat
    beat.close()


def fill(count: int, **columns: Any) -> None:
    """Write ``count`` plain monitors."""
    Monitor.objects.bulk_create(
        [
            Monitor(
                **{**PLAIN, "kwargs": f'{{"n": "ü{n}"}}', "queue": ("", "q")[n % 2], **columns, "name": f"m{n}"},
            )
            for n in range(count)
        ]
    )


@contextmanager
def unchecked(place: Place) -> Iterator[None]:
    """Let the block write what constraints forbid; in SQLite, whose triggers choke on it, the table is empty after."""
    if place.vendor == "mysql":
        place.execute("SET check_constraint_checks = 0")
        try:
            yield
        finally:
            place.execute("SET check_constraint_checks = 1")
        return
    triggers = place.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'wheelbeat_monitor'"
    )
    for name, _ in triggers:
        place.execute(f'DROP TRIGGER "{name}"')
    place.execute("PRAGMA ignore_check_constraints = ON")
    try:
        yield
    finally:
        place.execute("DELETE FROM wheelbeat_monitor")
        place.execute("PRAGMA ignore_check_constraints = OFF")
        for _, definition in triggers:
            place.execute(definition)


def write(place: Place, row: dict[str, Any]) -> None:
    place.execute(
        f"INSERT INTO wheelbeat_monitor ({', '.join(row)}) VALUES ({', '.join(['%s'] * len(row))})", *row.values()
    )


def definitions_of(batch: DefinitionBatch) -> dict[int, tuple[object, ...]]:
    """Everything about each job that a batch says, with its route instead of a number."""
    ends, name_ends = np.cumsum(batch.lengths, dtype=np.int64), np.cumsum(batch.name_lengths, dtype=np.int64)
    columns = (
        "kind", "interval_ms", "anchor_ms", "offset_ms", "cron_index", "flags", "start_ms", "end_ms",
        "incident_interval_ms", "incident_until_ms", "effective_from_ms",
    )  # fmt: skip
    return {
        job_id: (
            *(getattr(batch, name)[at].item() for name in columns),
            batch.route_at(at),
            batch.payload[ends[at] - batch.lengths[at] : ends[at]],
            batch.names[name_ends[at] - batch.name_lengths[at] : name_ends[at]],
        )
        for at, job_id in enumerate(batch.ids.tolist())
    }


def assert_read_as_compiled_one_by_one(beat: LoadingBeat, monkeypatch: pytest.MonkeyPatch) -> int:
    """Load, and compare with what single rows mean; returns how many were not read as columns."""
    batches, alone = [], []
    load, read = beat.engine.load, JoinedColumns.read

    def note(batch: DefinitionBatch, *others: Any) -> None:
        batches.append(batch)
        load(batch, *others)

    def note_rows(self: JoinedColumns, *asked: Any) -> bulk.ColumnBlock:
        block = read(self, *asked)
        alone.extend(block.rows)
        return block

    monkeypatch.setattr(beat.engine, "load", note)
    monkeypatch.setattr(JoinedColumns, "read", note_rows)
    beat.load()
    found: dict[int, tuple[object, ...]] = {}
    for batch in batches:
        found |= definitions_of(batch)
    ids = list(Monitor.objects.values_list("pk", flat=True))
    expected = compile_rows(beat.source.fetch(ids), crons=beat.engine.crons, entry_names=(ENTRY,))
    assert found == definitions_of(expected.batch)
    assert sorted(beat.definitions.quarantine.ids()) == sorted(expected.refused)
    return len(alone)


def assert_the_reconcile_finds(beat: LoadingBeat, wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go once through the whole table."""
    monkeypatch.setattr("celery_wheelbeat.sources.changelog.table_pass.CORE_SHARE", 1e9)
    beat.follower._period_s = 0.0
    rounds = beat.follower.findings.reconcile_rounds
    beat.until(lambda: beat.follower.findings.reconcile_rounds == rounds + 2)
    assert beat.follower.findings.reconciled_untriggered == wrong
    assert beat.follower.findings.drift_found == 0


def test_plain_monitors_are_read_as_columns(beat: LoadingBeat, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(1_000)
    Monitor.objects.filter(name__endswith="3").update(interval_ms=None, cron="*/5 * * * *", timezone="Europe/Rome")
    Monitor.objects.filter(name__endswith="4").update(jitter_s=7, priority=3, expires_s=0.1 + 0.2, args='["é", 1]')
    assert assert_read_as_compiled_one_by_one(beat, monkeypatch) == 0
    assert_the_reconcile_finds(beat, 0, monkeypatch)


def test_an_edit_behind_the_triggers_is_found_after_a_load_as_columns(
    beat: LoadingBeat, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(300)
    beat.load()
    edits = {"priority": 1, "kwargs": '{"n": 2}', "name": "other", "interval_ms": 60_001, "args": "[1]", "task": "T"}
    ids = list(Monitor.objects.values_list("pk", flat=True))
    for job_id, (column, value) in zip(ids[::30], edits.items(), strict=False):
        Monitor.objects.filter(pk=job_id).update(**{column: value})
    place.execute("DELETE FROM wheelbeat_changelog WHERE monitor_id IS NOT NULL")
    beat.follower._cursor = beat.source.snapshot().cursor
    assert_the_reconcile_finds(beat, len(edits), monkeypatch)


def odd_rows(vendor: str, rng: random.Random, count: int) -> Iterator[dict[str, Any]]:
    """Rows with anything in any column that the database takes, most of them nearly plain."""
    values: dict[str, Sequence[Any]] = {
        "task": ["proj.check", "proj.other", " ", "a'b", 'a"b', "a,b", "a\\", "é"],
        "args": ["[]", '["é", 1]', " [1]", "", "{}", "[", "x", '[{"__type__": "x"}]', "[1] ", "[NaN]", '["a\x1f"]'],
        "kwargs": ["{}", '{"url": "https://a.example/ü"}', "", "[]", "}", '{"k": {"__type__": "uuid"}}', "{1}",
                   '{"k": "' + "x" * 20_000 + '"}', '{"k": "\\u001f"}'],
        "interval_ms": [None, 0, 1, 500, 60_000, 90_500, 86_400_000, 2**62],
        "cron": ["", "*/5 * * * *", "0 3 31 2 *", "@daily", " "],
        "timezone": ["UTC", "Europe/Rome", "Mars/Base"],
        "day_rule": ["and", "or"],
        "jitter_s": [None, 0, 7, 90, 100_000],
        "once_at": [None, "2030-03-17 17:46:40"],
        "start_at": [None, "2027-01-15 08:00:00"],
        "solar_event": ["", "sunset"],
        "incident_interval_ms": [None, 10_000],
        "one_off": [0, 1],
        "queue": ["", "q", "Q"],
        "routing_key": ["", "q"],
        "priority": [None, 0, 9, 300],
        "headers": ["{}", '{"h": "x"}', "nope"],
        "options": ["{}", '{"compression": "zlib"}'],
        "expires_s": [None, 1.5, 0.3, 0.1 + 0.2],
        "expires_next": [0, 1],
        "misfire": ["auto", "skip", "latest", "all", "never"],
        "overlap": ["allow", "skip", "queue_one"],
        "enabled": [1, 0],
        "finished_at": [None, "2026-01-15 08:00:00"],
        "effective_from": ["2026-01-15 08:00:00", "2026-01-15 08:00:00.123456", "2026-01-15 08:00:00.999999"],
    }  # fmt: skip
    names = ["check {}", " x{}", "ä{}", "\x7f{}", "x" * 196 + "{}", "\u00a0{}", "a\tb{}"]
    if vendor == "sqlite":
        names += ["a\0b{}", "x" * 201 + "{}"]
        values["task"] = [*values["task"], "proj.check\0", "proj.check\0x", b"proj.check", "\x1f"]
        values["args"] = [*values["args"], "[1]\0]", b"[]", "[]\0"]
        values["kwargs"] = [*values["kwargs"], b"{}", '{"a": 1}\0}']
        values["interval_ms"] = [*values["interval_ms"], 1.5, "soon", b"60000"]
        values["priority"] = [*values["priority"], 1.5, "high", b"1"]
        values["jitter_s"] = [*values["jitter_s"], "7 s", 0.5]
        values["one_off"] = [*values["one_off"], "yes", b"", 0.5]
        values["expires_s"] = [*values["expires_s"], "never", b"1", 1e300 * 1e300]
    for number in range(count):
        row: dict[str, Any] = {"name": rng.choice(names[: 1 + number % 2 * len(names)]).format(number)}
        for column, choices in values.items():
            often = choices[1] if column == "interval_ms" else choices[0]
            row[column] = rng.choice(choices) if rng.random() < 0.06 else often
        row["interval_ms"] = row["interval_ms"] or (None if row["cron"].strip() else 60_000)
        yield row


@pytest.mark.parametrize("seed", range(4))
def test_whatever_a_table_holds_means_the_same(
    beat: LoadingBeat, place: Place, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unchecked(place):
        for row in odd_rows(place.vendor, random.Random(seed), 600):
            write(place, row)
        write(place, {**PLAIN, "name": ENTRY})
        alone = assert_read_as_compiled_one_by_one(beat, monkeypatch)
        assert 100 < alone < 500, "some of either kind"
        assert_the_reconcile_finds(beat, 0, monkeypatch)


def test_a_name_with_the_end_of_a_text_makes_its_block_be_read_row_by_row(
    beat: LoadingBeat, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(250)
    Monitor.objects.filter(name="m120").update(name="m\x1f120")
    assert assert_read_as_compiled_one_by_one(beat, monkeypatch) == BLOCK_ROWS
    assert_the_reconcile_finds(beat, 0, monkeypatch)


@pytest.mark.parametrize("place", [pytest.param("mysql", marks=pytest.mark.mysql)], indirect=True)
@pytest.mark.parametrize("max_bytes", [1_000, 3_000, 4_096])
def test_a_joined_text_that_the_server_cuts_is_noticed(
    beat: LoadingBeat, place: Place, max_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(250)
    columns = beat.follower._columns
    assert columns is not None

    def open_reader() -> Any:
        reader = columns.open_reader()
        reader._session._connected().query(f"SET group_concat_max_len = {max_bytes}")
        return reader

    monkeypatch.setattr(beat.follower, "_columns", columns._replace(open_reader=open_reader))
    assert assert_read_as_compiled_one_by_one(beat, monkeypatch) >= 200


def test_ids_may_be_sparse_and_negative(beat: LoadingBeat, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [-5, *itertools.accumulate(range(1, 300), lambda one, step: one + step**5), 2**62]
    Monitor.objects.bulk_create([Monitor(**{**PLAIN, "name": f"m{n}"}, pk=n) for n in ids])
    assert assert_read_as_compiled_one_by_one(beat, monkeypatch) == 1
    assert len(beat.engine) == len(ids) - 1


def test_an_empty_table_is_loaded_at_once(beat: LoadingBeat) -> None:
    beat.load()
    assert beat.loaded_rows == [0]


def test_blocks_are_smaller_where_rows_are_long(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_columns, "BLOCK_BYTES", 10_000)
    fill(100, args='["' + "x" * 980 + '"]')
    open_reader = place.open().open_reader
    assert open_reader is not None
    reader = open_reader()
    ids = list(Monitor.objects.order_by("pk").values_list("pk", flat=True))
    assert reader.cuts(-1, 50) == ids[9::10]
    assert reader.cuts(ids[94], 50) == [ids[-1]]
    assert reader.cuts(ids[-1], 50) == []
    reader.close()


def test_edits_while_monitors_load_and_very_many_of_them_after(
    beat: LoadingBeat, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(3_000)
    rng, names = random.Random(1), itertools.count()

    def edit() -> None:
        ids = list(Monitor.objects.order_by("pk").values_list("pk", flat=True))
        Monitor.objects.filter(pk__in=rng.sample(ids, 20)).update(kwargs=f'{{"v": {next(names)}}}')
        Monitor.objects.filter(pk__in=rng.sample(ids, 2)).delete()
        monitor(f"new{next(names)}")

    def assert_the_engine_is_the_table() -> None:
        rows = list(Monitor.objects.order_by("pk").values_list("pk", "name", "args", "kwargs"))
        views = beat.engine.lookup([row[0] for row in rows])
        found = [(view.name, view.payload.decode()) for view in views if view is not None]
        assert found == [(name, f"[{args}, {kwargs}]") for _, name, args, kwargs in rows]
        assert len(beat.engine) == len(rows)

    beat.load(between=edit)
    assert_the_engine_is_the_table()
    monkeypatch.setattr(follower, "MANY_ROWS", 500)
    Monitor.objects.update(kwargs='{"edited": 1}')
    Monitor.objects.filter(name__startswith="m1").update(start_at="2027-01-15T08:00:00Z")
    Monitor.objects.filter(name__startswith="m2").delete()
    beat.until(lambda: beat.follower._reader is not None)
    beat.until(lambda: not beat.step() and not beat.follower.behind)
    assert_the_engine_is_the_table()
    assert_the_reconcile_finds(beat, 0, monkeypatch)
