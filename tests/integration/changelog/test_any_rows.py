"""Whatever a row holds, it concerns that row: it runs as it would alone, or is quarantined with its reason.

Rows of the grammar and of its neighbours go through the real load of each database, through edits in small and in large
numbers, and through the reconcile. What is not quarantined is sent as JSON that every reader takes.
"""

from __future__ import annotations

import json
import random
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pytest
from django.db import DatabaseError, transaction
from kombu.utils.json import dumps, loads
from support.beat.loading import ENTRY, START_MS, LoadingBeat
from support.changelog.any_rows import any_rows, edits

from celery_wheelbeat.jobs.compile import compile_rows
from celery_wheelbeat.schedules.cron import CronTable
from celery_wheelbeat.schedules.solar import SolarSchedule
from celery_wheelbeat.sources.changelog import follower
from celery_wheelbeat.sources.messages import Changed, Loaded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from support.changelog.places import Place

    from celery_wheelbeat.jobs.definitions import DefinitionBatch
    from celery_wheelbeat.sources.messages import SourceMessage

FETCHED = 500
BATCH_COLUMNS = (
    "kind", "interval_ms", "anchor_ms", "offset_ms", "flags", "start_ms", "end_ms", "incident_interval_ms",
    "incident_until_ms", "effective_from_ms",
)  # fmt: skip


class NotingBeat(LoadingBeat):
    """Notes what it hands to the engine."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.held: dict[int, tuple[object, ...]] = {}

    def step(self) -> list[SourceMessage]:
        news = super().step()
        for one in news:
            if isinstance(one, Loaded):
                self.held |= definitions_of(one.batch)
            elif isinstance(one, Changed):
                for job_id in one.changes.deleted_ids.tolist():
                    self.held.pop(job_id, None)
                self.held |= definitions_of(one.changes.upserts)
        return news

    def follow(self) -> None:
        """Take in every edit."""
        self.until(lambda: not self.step() and not self.follower.behind)


def definitions_of(batch: DefinitionBatch) -> dict[int, tuple[object, ...]]:
    """Everything about each job that a batch says, with values instead of numbers of its tables."""
    ends, name_ends = np.cumsum(batch.lengths, dtype=np.int64), np.cumsum(batch.name_lengths, dtype=np.int64)
    return {
        job_id: (
            batch.route_at(at),
            batch.cron_index[at] >= 0,
            batch.payload[ends[at] - batch.lengths[at] : ends[at]],
            batch.names[name_ends[at] - batch.name_lengths[at] : name_ends[at]],
            *(getattr(batch, name)[at].item() for name in BATCH_COLUMNS),
        )
        for at, job_id in enumerate(batch.ids.tolist())
    }


def execute_each(place: Place, statements: Iterable[tuple[str, tuple[Any, ...]]]) -> int:
    """Run the statements, those that the database refuses without effect; returns how many ran.

    In one transaction where a refused statement does not end it, and without waiting for the disk where it does.
    """
    done = 0
    if place.vendor == "postgresql":
        place.execute("SET synchronous_commit = off")
    with nullcontext() if place.vendor == "postgresql" else transaction.atomic():
        for statement, values in statements:
            with suppress(DatabaseError, ValueError):
                place.execute(statement, *values)
                done += 1
    return done


def insert(rows: Iterable[dict[str, Any]]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for row in rows:
        places = ", ".join(["%s"] * len(row))
        yield f"INSERT INTO wheelbeat_monitor ({', '.join(row)}) VALUES ({places})", tuple(row.values())


def update(ids: Iterable[int], changes: Iterable[dict[str, Any]]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for job_id, change in zip(ids, changes, strict=False):
        assigned = ", ".join(f"{column} = %s" for column in change)
        yield f"UPDATE wheelbeat_monitor SET {assigned} WHERE id = %s", (*change.values(), job_id)


def assert_each_row_is_its_own(beat: NotingBeat, place: Place) -> int:
    """Compare with each row compiled alone; returns how many are quarantined."""
    ids = [row[0] for row in place.execute("SELECT id FROM wheelbeat_monitor ORDER BY id")]
    refused: dict[int, str] = {}
    held: dict[int, tuple[object, ...]] = {}
    crons = CronTable()
    for start in range(0, len(ids), FETCHED):
        for row in beat.source.fetch(ids[start : start + FETCHED]):
            alone = compile_rows([row], crons=crons, solar=SolarSchedule, entry_names=(ENTRY,))
            refused |= {job_id: str(problem) for job_id, problem in alone.refused.items()}
            held |= definitions_of(alone.batch)
    assert {job_id: reason for job_id, reason in refused.items() if "see the log" in reason} == {}
    assert {job_id: verdict[1] for job_id, verdict in beat.definitions.quarantine._verdicts.items()} == refused
    assert beat.held == held
    assert len(beat.engine) == len(held)
    for definition in held.values():
        assert_every_reader_takes(loads(definition[2]))
        assert_every_reader_takes(loads(definition[0].options))  # type: ignore[attr-defined]
    return len(refused)


def assert_every_reader_takes(value: Any) -> None:
    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is sent")

    json.dumps(json.loads(dumps(value), parse_constant=refuse), ensure_ascii=False).encode()


def assert_the_reconcile_finds_nothing(beat: NotingBeat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_wheelbeat.sources.changelog.table_pass.CORE_SHARE", 1e9)
    beat.follower._period_s = 0.0
    rounds = beat.follower.findings.reconcile_rounds
    beat.until(lambda: beat.follower.findings.reconcile_rounds == rounds + 2)
    assert (beat.follower.findings.reconciled_untriggered, beat.follower.findings.drift_found) == (0, 0)


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)])])
def test_whatever_a_row_holds_concerns_no_other(place: Place, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(count)
    stored = execute_each(place, insert(any_rows(place.vendor, rng, count)))
    assert stored > count / 2
    beat = NotingBeat(place)
    beat.deadline_s = 60 + count / 50
    try:
        beat.load()
        quarantined = assert_each_row_is_its_own(beat, place)
        assert 0.1 * stored < quarantined < 0.7 * stored, "some of either kind"
        ids = sorted(beat.held)
        for many_rows in (follower.MANY_ROWS, 1):
            monkeypatch.setattr(follower, "MANY_ROWS", many_rows)
            edited = rng.sample(ids, len(ids) // 3)
            execute_each(place, update(edited, edits(place.vendor, rng, len(edited))))
            beat.follow()
            assert_each_row_is_its_own(beat, place)
        assert_the_reconcile_finds_nothing(beat, monkeypatch)
        beat.engine.advance(START_MS + 5_000)
    finally:
        beat.close()


def test_a_large_number_that_a_later_key_replaces_counts_only_if_no_worker_reads_it(place: Place) -> None:
    numbers = {"digits": "9" * 400 + ".0", "exponent": "1e999", "whole": "9" * 5_000, "nested": "[[1e999]]"}
    rows = [
        {"name": name, "task": "proj.note", "interval_ms": 60_000, "kwargs": f'{{"a": {number}, "a": [1]}}'}
        for name, number in numbers.items()
    ]
    assert execute_each(place, insert(rows)) == len(rows)
    beat = NotingBeat(place)
    try:
        beat.load()
        assert assert_each_row_is_its_own(beat, place) == 1
        ((whole,),) = place.execute("SELECT id FROM wheelbeat_monitor WHERE name = 'whole'")
        assert "Exceeds the limit" in beat.definitions.quarantine._verdicts[whole][1]
    finally:
        beat.close()


@pytest.mark.parametrize(
    "kwargs",
    [
        '{"a": 01}', '{"a": 1.}', '{"a": 1e}', '{"a":-1.5E+}', '{"a":-}', '{"a": "\\x41"}', '{"a": "\\\\\\0"}',
        '{"a": 1,}', "{'a': 1}", '{"a": NaN}', '{"a": Infinity}', '{"a": 1e999}', '{"a": "\\ud800"}',
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_sent_are_written_down_at_the_load(place: Place, kwargs: str) -> None:
    rows = [{"name": name, "task": "proj.note", "interval_ms": 60_000} for name in ("bad", "good")]
    assert execute_each(place, insert([rows[0] | {"kwargs": kwargs}, rows[1]])) == 2
    database = place.open()
    beat = NotingBeat(place)
    beat.load()
    added, lifted = beat.definitions.quarantine.take_unwritten()
    database.store.quarantine(added, sorted(lifted))
    beat.close()
    ids = dict(place.execute("SELECT name, id FROM wheelbeat_monitor"))
    assert beat.held.keys() == {ids["good"]}
    ((key, (_, reason)),) = database.store.quarantined().items()
    assert key == f"monitor:{ids['bad']}"
    assert "kwargs: not valid JSON" in reason
    database.source.close()
