"""Whole columns mean what single rows mean: the same rows, compiled both ways, give the same definitions."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.changelog.table import PLAIN
from support.examples import examples

from celery_wheelbeat.engine.packing import encode
from celery_wheelbeat.jobs import compile_columns as columns_module
from celery_wheelbeat.jobs.compile import Compiled, compile_rows
from celery_wheelbeat.jobs.compile_columns import RARE, RowColumns, Shapes
from celery_wheelbeat.jobs.definitions import DefinitionBatch
from celery_wheelbeat.jobs.rows import Limits
from celery_wheelbeat.schedules.cron import CronTable
from celery_wheelbeat.sources.changelog import translator as definitions_module
from celery_wheelbeat.sources.changelog.translator import Translator

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from celery_wheelbeat.jobs.rows import MonitorRow

LIMIT = 1_024
"""``max_payload_bytes`` of these tests."""
OWN = ("id", "name", "args", "kwargs", "interval_ms", "effective_from_ms", "fingerprint")
RARELY = ("once_at_ms", "solar_event", "start_at_ms", "end_at_ms", "incident_interval_ms", "incident_until_ms")

names = st.one_of(
    st.sampled_from(
        ["check", " ", " x", "ä", "\x7f", "a\0b", "x" * 201, "entry", "\u00a0", "a\nb", "b\x85", "c\u2028"]
    ),
    st.text("ab é\t\u202e\u200d", max_size=5),
)
texts_of_args = st.sampled_from(
    ["[]", '["é", 1]', " [1]", "", None, "{}", "[", "x", '[{"__type__": "x"}]', "[1] ", "[1][2]", "[NaN]", "[1e999]",
     "[-1E+0400, 0]", "[1e308]", '["\\ud800"]', '["\\ud83d\\ude00"]', '[{"\\u005f_type__": "x"}]', '["7e123"]',
     f"[{9:0400d}e9]", f"[{'1' * 400}.5]", f"[{'1' * 400}]", "[01]"]
)  # fmt: skip
texts_of_kwargs = st.sampled_from(
    [
        "{}",
        '{"url": "https://a.example/ü"}',
        "",
        None,
        "[]",
        "}",
        '{"k": {"__type__": "uuid", "__value__": "1"}}',
        "{x" * 600,
        '{"a": 01}',
        "{'a': 1}",
        '{"a": Infinity}',
        '{"a":1.5E999}',
    ]
)
rows = st.builds(
    PLAIN._replace,
    name=names,
    task=st.sampled_from(["proj.check", "proj.other", " "]),
    args=texts_of_args,
    kwargs=texts_of_kwargs,
    interval_ms=st.sampled_from([None, 0, 1, 99, 100, 500, 60_000, 90_500, 86_400_000, 2**62]),
    cron=st.sampled_from([None, None, "*/5 * * * *", "0 3 31 2 *", "@daily"]),
    timezone=st.sampled_from(["UTC", "Europe/Rome", "Mars/Base"]),
    day_rule=st.sampled_from(["and", "or"]),
    jitter_s=st.sampled_from([None, None, 0, 7, 90, 100_000]),
    once_at_ms=st.sampled_from([None, None, None, 1_900_000_000_000]),
    start_at_ms=st.sampled_from([None, None, None, 1_800_000_000_000]),
    incident_interval_ms=st.sampled_from([None, None, None, 10_000]),
    one_off=st.booleans(),
    queue=st.sampled_from([None, "q"]),
    priority=st.sampled_from([None, 0, 9, 300]),
    headers=st.sampled_from(["{}", '{"h": "x"}', "nope"]),
    expires_s=st.sampled_from([None, 1.5]),
    expires_next=st.booleans(),
    misfire=st.sampled_from(["auto", "skip", "latest", "all", "never"]),
    overlap=st.sampled_from(["allow", "skip", "queue_one"]),
    enabled=st.booleans(),
    effective_from_ms=st.integers(0, 2**40),
    finished_at_ms=st.sampled_from([None, None, None, 1]),
)


@st.composite
def tables(draw: st.DrawFn) -> list[MonitorRow]:
    found = draw(st.lists(rows, min_size=1, max_size=12))
    ids = draw(st.lists(st.integers(-2, 2**40), min_size=len(found), max_size=len(found), unique=True))
    return [row._replace(id=job_id) for job_id, row in zip(sorted(ids), found, strict=True)]


def is_json(text: str | None) -> bool:
    """What databases and PostgreSQL's jsonb know of JSON: no constants, but numbers of any size."""
    try:
        json.loads(text or "", parse_float=str, parse_int=str, parse_constant=lambda _: 1 // 0)
    except (ValueError, ZeroDivisionError):
        return False
    return True


def columns_of(table: Sequence[MonitorRow], numbers_max: int = 2**40) -> RowColumns:
    """What a database does: number the shapes, join the texts. The first of two numbers is below ``numbers_max``."""
    numbers: dict[tuple[object, ...], int] = {}
    shape = []
    for row in table:
        common = (*row._replace(**dict.fromkeys(OWN)), row.interval_ms is None)
        rare = any(getattr(row, name) is not None for name in RARELY) or row.finished_at_ms is not None
        plain = not rare and is_json(row.args) and is_json(row.kwargs)
        shape.append(numbers.setdefault(common, len(numbers) + 1) if plain else RARE)
    texts = [
        ("", "", "") if number == RARE else (row.name, row.args or "", row.kwargs or "")
        for row, number in zip(table, shape, strict=True)
    ]
    encoded = [tuple(text.encode() for text in own) for own in texts]
    payloads = [
        b"" if number == RARE else b"[" + args + b", " + kwargs + b"]"
        for number, (_, args, kwargs) in zip(shape, encoded, strict=True)
    ]
    return RowColumns(
        ids=np.array([row.id for row in table], np.int64),
        shape=np.array([number and 1 + number % numbers_max for number in shape], np.int64),
        interval_ms=np.array([row.interval_ms or 0 for row in table], np.int64),
        effective_from_ms=np.array([row.effective_from_ms for row in table], np.int64),
        names=b"".join(name for name, _, _ in encoded),
        name_lengths=np.array([len(name) for name, _, _ in encoded], np.int64),
        payload=b"".join(payloads),
        lengths=np.array([len(payload) for payload in payloads], np.int64),
        args_lengths=np.array([len(args) for _, args, _ in encoded], np.int64),
        shape_rest=np.array(shape, np.int64),
    )


OTHERS = ("payload", "names", "polled", "spread", "routes", "route_index")


def by_id(batch: DefinitionBatch) -> dict[int, tuple[object, ...]]:
    found = {}
    ends, name_ends = np.cumsum(batch.lengths, dtype=np.int64), np.cumsum(batch.name_lengths, dtype=np.int64)
    columns = [name for name in DefinitionBatch.__slots__ if name not in OTHERS]
    for at, job_id in enumerate(batch.ids.tolist()):
        found[job_id] = (
            batch.route_at(at),
            *(getattr(batch, name)[at].item() for name in columns),
            batch.payload[ends[at] - batch.lengths[at] : ends[at]],
            batch.names[name_ends[at] - batch.name_lengths[at] : name_ends[at]],
        )
    return found


def compiled_as_columns(
    table: Sequence[MonitorRow], compile_all: partial[Compiled], numbers_max: int = 2**40
) -> tuple[DefinitionBatch, Compiled]:
    """The way of a load: learn the shapes, compile the columns, compile the rest by rows, merge."""
    shapes = Shapes(partial(compile_all, entry_names=()), max_payload_bytes=LIMIT)
    rows_by_id = {row.id: row for row in table}
    columns = columns_of(table, numbers_max)
    shapes.learn({key: rows_by_id[job_id] for key, job_id in shapes.unknown(columns).items()})
    assert not shapes.unknown(columns)
    named = [row.id for row in table if row.name == "entry"]
    split = shapes.compile(columns, np.array(named, np.int64))
    rest = compile_all([rows_by_id[job_id] for job_id in columns.ids[~split.plain].tolist()])
    return DefinitionBatch.merged([split.batch, rest.batch]), rest


@given(tables(), st.sampled_from([1, 2, 2**40]))
@examples(120)
def test_columns_and_rows_mean_the_same(table: list[MonitorRow], numbers_max: int) -> None:
    """Also where the first halves of the digests of different shapes are equal."""
    crons = CronTable()
    compile_all = partial(compile_rows, crons=crons, limits=Limits(LIMIT), entry_names=("entry",))
    expected = compile_all(table)
    batch, rest = compiled_as_columns(table, compile_all, numbers_max)
    assert by_id(expected.batch) == by_id(batch)
    assert {key: str(value) for key, value in expected.refused.items()} == {
        key: str(value) for key, value in rest.refused.items()
    }
    assert (batch.ids[1:] > batch.ids[:-1]).all()


def test_plain_rows_really_go_as_columns() -> None:
    table = [PLAIN._replace(id=n, name=f"m{n}", interval_ms=60_000 * (1 + n % 3)) for n in range(1, 1001)]
    calls: list[int] = []

    def counting(rows: Sequence[MonitorRow], **options: object) -> Compiled:
        calls.append(len(rows))
        return compile_rows(rows, crons=CronTable())

    batch, _ = compiled_as_columns(table, partial(counting))
    assert len(batch) == 1000
    assert calls == [1, 0], "one row for the one shape, and no rest"


def test_more_shapes_than_are_kept_are_compiled_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "SHAPES_MAX", 3)
    compile_all = partial(compile_rows, crons=CronTable())
    shapes = Shapes(compile_all)
    table = [PLAIN._replace(id=n, name=f"m{n}", queue=f"q{n}") for n in range(1, 6)]
    columns = columns_of(table)
    for key, job_id in shapes.unknown(columns).items():
        shapes.learn({key: table[job_id - 1]})
    assert shapes.compile(columns, np.empty(0, np.int64)).plain.sum() == 3
    assert not shapes.unknown(columns)


def test_rows_of_ever_new_shapes_are_not_all_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "SHAPES_MAX", 3)
    shapes = Shapes(partial(compile_rows, crons=CronTable()))
    for first in range(1, 1000, 10):
        numbers = shapes.columns_of(
            [PLAIN._replace(id=n, name=f"m{n}", queue=f"q{n}") for n in range(first, first + 10)]
        )
        assert (numbers.shape == columns_module.RARE).sum() == (7 if first == 1 else 10)
    assert len(shapes._numbers) == 3


@given(tables())
@examples(100)
def test_jobs_known_to_be_spread_are_stored_like_those_that_are_found_to_be(table: list[MonitorRow]) -> None:
    batch, _ = compiled_as_columns(table, partial(compile_rows, crons=CronTable()))
    assert batch.spread is None or len(batch.spread) == len(batch)
    refs = np.zeros(len(batch), np.uint32)
    known, found = encode(batch, refs), encode(replace(batch, spread=None), refs)
    assert known[1] == found[1]
    assert all((left == right).all() for left, right in zip(known[0], found[0], strict=True))


@given(tables())
@examples(100)
def test_rows_turned_into_columns_mean_the_same_to_the_last_problem(table: list[MonitorRow]) -> None:
    crons = CronTable()
    compile_all = partial(compile_rows, crons=crons, limits=Limits(LIMIT), entry_names=("entry",))
    shapes = Shapes(partial(compile_all, entry_names=()), max_payload_bytes=LIMIT)
    definitions = Translator(compile_all, shapes, taken_names=("entry",))
    with mock.patch.object(definitions_module, "MANY_ROWS", 0):
        changes, refused = definitions.translate(table)
    expected = compile_all(table)
    assert by_id(changes.upserts) == by_id(expected.batch)
    assert {job_id: str(problem) for job_id, problem in refused.items()} == {
        job_id: str(problem) for job_id, problem in expected.refused.items()
    }
