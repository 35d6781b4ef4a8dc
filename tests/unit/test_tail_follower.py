"""The follower: load, changes in slices, resync, reconcile, and that a failed step is simply taken again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.changelog.table import TableOfMonitors

from celery_wheelbeat.errors import SourceError
from celery_wheelbeat.jobs import compile as monitors
from celery_wheelbeat.jobs import validation as checks
from celery_wheelbeat.jobs.compile import compile_rows
from celery_wheelbeat.jobs.compile_columns import Shapes
from celery_wheelbeat.jobs.rows import MonitorRow
from celery_wheelbeat.schedules.cron import CronTable
from celery_wheelbeat.sources.changelog import follower
from celery_wheelbeat.sources.changelog import table_pass as walk
from celery_wheelbeat.sources.changelog import translator as definitions
from celery_wheelbeat.sources.changelog.follower import Follower
from celery_wheelbeat.sources.changelog.translator import Translator
from celery_wheelbeat.sources.messages import Changed, Loaded, Sized

if TYPE_CHECKING:
    from celery_wheelbeat.sources.messages import SourceMessage

PERIOD_S = 100.0


class Beat:
    """A follower, and what an engine would hold after its news."""

    def __init__(self, table: TableOfMonitors) -> None:
        self.table = table
        self.definitions = Translator(partial(compile_rows, crons=CronTable()))
        self.follower = Follower(table, self.definitions, reconcile_period_s=PERIOD_S)
        self.held: dict[int, int] = {}
        self.now_s = 0.0
        self.lasts: list[bool] = []

    def step(self) -> bool:
        news, more = self.follower.step(self.now_s)
        self.follower.rest(self.now_s, self.now_s)
        for one in news:
            self._take(one)
        return more

    def settle(self) -> None:
        """Step until nothing is waiting."""
        while self.step():
            pass

    def reconcile(self) -> None:
        """Let one whole round of the reconcile pass."""
        rounds = self.follower.findings.reconcile_rounds
        while self.follower.findings.reconcile_rounds < rounds + 2:  # the first may have begun before
            self.now_s += PERIOD_S
            self.settle()

    def expected(self) -> dict[int, int]:
        return {job_id: row.interval_ms for job_id, row in self.table.rows.items() if row.cron is None}

    def _take(self, news: SourceMessage) -> None:
        if isinstance(news, Sized):
            return
        if isinstance(news, Loaded):
            self.lasts.append(news.last)
            changes, deleted = news.batch, []
        else:
            assert isinstance(news, Changed)
            changes, deleted = news.changes.upserts, news.changes.deleted_ids.tolist()
        self.held |= dict(zip(changes.ids.tolist(), changes.interval_ms.tolist(), strict=True))
        for job_id in deleted:
            self.held.pop(job_id, None)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "BLOCK_ROWS", 10)
    monkeypatch.setattr(walk, "RECONCILE_ROWS", 7)
    monkeypatch.setattr(follower, "SLICE_ROWS", 5)


def test_a_load_hands_everything_over_once_and_says_when_it_is_whole() -> None:
    beat = Beat(TableOfMonitors(25))
    beat.settle()
    assert beat.held == beat.expected()
    assert beat.lasts == [False, False, True]
    assert beat.follower.loaded
    assert beat.follower.findings.loaded_rows == beat.follower.findings.expected_rows == 25
    assert len(beat.definitions) == 25


def test_an_empty_table_is_loaded_too() -> None:
    beat = Beat(TableOfMonitors())
    beat.settle()
    assert beat.lasts == [True]


def test_edits_during_the_load_are_neither_lost_nor_handed_over_twice() -> None:
    table = TableOfMonitors(25)
    beat = Beat(table)
    beat.step()
    table.put(3, interval_ms=1_000)  # behind the walk
    table.put(20, interval_ms=2_000)  # before it
    table.drop(4)
    table.drop(21)
    table.put(99, interval_ms=3_000)
    beat.settle()
    assert beat.held == beat.expected()
    assert beat.follower.findings.changes == 2


def test_a_step_hands_over_no_more_than_a_slice() -> None:
    table = TableOfMonitors(25)
    beat = Beat(table)
    beat.settle()
    for job_id in table.rows:
        table.put(job_id, interval_ms=1_000)
    handed = []
    while beat.step():
        handed.append(beat.follower.behind)
    assert handed == [20, 15, 10, 5]
    assert beat.held == beat.expected()


@pytest.mark.parametrize("call", ["snapshot", "poll", "fetch", "block"])
def test_a_step_that_fails_is_taken_again(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = TableOfMonitors(25)
    beat = Beat(table)
    answer = getattr(table, call)
    failures = [SourceError("down")] * 3

    def flaky(*arguments: object) -> object:
        if failures:
            raise failures.pop()
        return answer(*arguments)

    monkeypatch.setattr(table, call, flaky)
    table.put(26)
    for _ in range(20):
        try:
            beat.settle()
            table.put(7, interval_ms=5_000)
        except SourceError:
            continue
    assert not failures
    assert beat.held == beat.expected()


@pytest.mark.parametrize("reason", ["pruned", "failover", "replaced", "truncated", "manual"])
def test_a_lost_cursor_is_a_resync_that_hands_over_what_differs(reason: str) -> None:
    table = TableOfMonitors(40)
    beat = Beat(table)
    beat.settle()
    table.put(5, triggered=False, interval_ms=1_000)
    table.drop(6, triggered=False)
    table.drop(40, triggered=False)
    table.put(41, triggered=False)
    table.lose(reason)
    taken = []
    beat._take = lambda news, take=beat._take: (taken.append(news), take(news))
    beat.settle()
    assert beat.held == beat.expected()
    assert dict(beat.follower.findings.resyncs) == {reason: 1}
    assert sum(len(news.changes.upserts) + len(news.changes.deleted_ids) for news in taken) == 4
    assert beat.follower.findings.drift_found == beat.follower.findings.reconciled_untriggered == 0


def test_a_cursor_lost_during_the_load_begins_the_load_again() -> None:
    table = TableOfMonitors(25)
    beat = Beat(table)
    beat.step()
    table.drop(3, triggered=False)
    table.lose("failover")
    beat.settle()
    assert beat.held == beat.expected()
    assert beat.lasts[-1]
    assert beat.follower.findings.loaded_rows == beat.follower.findings.expected_rows == 24


def test_a_failover_during_a_resync_begins_it_again() -> None:
    table = TableOfMonitors(40)
    beat = Beat(table)
    beat.settle()
    table.lose("failover")
    beat.step()
    beat.step()
    table.put(1, triggered=False, interval_ms=1_000)
    table.lose("failover")
    beat.settle()
    assert beat.held == beat.expected()
    assert beat.follower.findings.resyncs["failover"] == 2


def test_the_reconcile_heals_and_counts_what_no_trigger_saw() -> None:
    table = TableOfMonitors(30)
    beat = Beat(table)
    beat.settle()
    table.put(5, triggered=False, interval_ms=1_000)
    table.drop(30, triggered=False)
    table.put(31, triggered=False)
    beat.reconcile()
    assert beat.held == beat.expected()
    assert beat.follower.findings.reconciled_untriggered == 3
    assert beat.follower.findings.drift_found == 0


def test_the_reconcile_calls_it_drift_when_the_log_had_the_change() -> None:
    table = TableOfMonitors(30)
    beat = Beat(table)
    beat.settle()
    table.put(5, interval_ms=1_000)
    beat.follower._cursor += 1  # the damage: one row of the log is skipped
    beat.reconcile()
    assert beat.held == beat.expected()
    assert beat.follower.findings.drift_found == 1
    assert beat.follower.findings.reconciled_untriggered == 0


def test_the_reconcile_finds_nothing_while_people_edit() -> None:
    table = TableOfMonitors(30)
    beat = Beat(table)
    beat.settle()
    block, fetch = table.block, table.fetch
    numbers = iter(range(10**6))

    def edited_before(*arguments: object) -> object:
        table.put(next(numbers) % 40 + 1, interval_ms=1_000 + next(numbers))
        table.drop(next(numbers) % 40 + 1)
        return block(*arguments)

    def edited_after(*arguments: object) -> object:
        found = fetch(*arguments)
        table.put(next(numbers) % 40 + 1, interval_ms=1_000 + next(numbers))
        return found

    table.block, table.fetch = edited_before, edited_after
    for _ in range(100):
        beat.now_s += PERIOD_S
        for _ in range(3):
            beat.step()
    table.block, table.fetch = block, fetch
    beat.settle()
    assert beat.held == beat.expected()
    assert beat.follower.findings.reconcile_rounds > 10
    assert beat.follower.findings.drift_found == beat.follower.findings.reconciled_untriggered == 0


def test_the_reconcile_spreads_over_its_period_and_rests_after_slow_blocks() -> None:
    pass_ = walk.TablePass(walk.Purpose.RECONCILE, due_s=0.0)
    pass_.pace(1000.0, 1000.001, period_s=3_600, monitors=7 * 360)
    assert pass_.due_s == pytest.approx(1010.0)
    pass_.pace(1000.0, 1001.0, period_s=3_600, monitors=7 * 3_600)
    assert pass_.due_s == pytest.approx(1051.0)


def test_a_refused_row_leaves_the_engine_and_comes_back_when_it_is_mended() -> None:
    table = TableOfMonitors(3)
    beat = Beat(table)
    beat.settle()
    table.put(2, interval_ms=None, cron="99 * * * *")
    beat.settle()
    assert beat.held.keys() == {1, 3}
    added, lifted = beat.definitions.quarantine.take_unwritten()
    assert added.keys() == {"monitor:2"}
    assert "99" in added["monitor:2"][1]
    table.put(2, interval_ms=5_000, cron=None)
    beat.settle()
    assert beat.held[2] == 5_000
    added, lifted = beat.definitions.quarantine.take_unwritten()
    assert (added, lifted) == ({}, {"monitor:2"})


@pytest.mark.parametrize("many_rows", [5, 100])
@pytest.mark.parametrize("place", ["checks.Cron", "checks._policy_problems", "monitors._payload"])
def test_a_row_that_makes_our_own_code_raise_is_refused_alone(
    place: str, many_rows: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(definitions, "MANY_ROWS", many_rows)
    table, cron = TableOfMonitors(20), "13 13 13 12 *"
    table.put(13, interval_ms=None, cron=cron)
    module_name, name = place.split(".")
    module = {"checks": checks, "monitors": monitors}[module_name]
    right = getattr(module, name)

    def fault(first: Any, *rest: Any, **options: Any) -> Any:
        if cron in (first, getattr(first, "cron", None)):
            raise ZeroDivisionError("a fault of ours")
        return right(first, *rest, **options)

    checks.cron_of.cache_clear()
    monkeypatch.setattr(module, name, fault)
    beat = Beat(table)
    compile_all = partial(compile_rows, crons=CronTable())
    beat.definitions = Translator(compile_all, Shapes(compile_all))
    beat.follower = Follower(table, beat.definitions, reconcile_period_s=PERIOD_S)
    beat.settle()
    checks.cron_of.cache_clear()
    assert beat.held.keys() == table.rows.keys() - {13}
    assert "a fault of ours" in beat.definitions.quarantine.take_unwritten().added["monitor:13"][1]
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("many_rows", [5, 100])
def test_rows_with_values_of_any_type_stop_no_other(many_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite stores any value in any column; many rows are compiled as columns."""
    monkeypatch.setattr(definitions, "MANY_ROWS", many_rows)
    table = TableOfMonitors(20)
    beat = Beat(table)
    compile_all = partial(compile_rows, crons=CronTable())
    beat.definitions = Translator(compile_all, Shapes(compile_all))
    beat.follower = Follower(table, beat.definitions, reconcile_period_s=PERIOD_S)
    odd: list[Any] = [None, "x", b"x", 1.5, 2**70, -(2**70), float("nan")]
    for column in MonitorRow._fields[1:-1]:
        for value in odd:
            table.put(len(table.rows) + 1, **{column: value})
    beat.settle()
    assert beat.held.keys() >= set(range(1, 21))
    assert beat.held.keys() | set(beat.definitions.quarantine.ids()) == table.rows.keys()
    added = beat.definitions.quarantine.take_unwritten().added
    assert not [reason for _, reason in added.values() if "cannot be compiled" in reason]


def test_quarantine_of_a_monitor_that_is_gone_is_lifted_after_the_load() -> None:
    beat = Beat(TableOfMonitors(3))
    beat.definitions.quarantine.adopt({"monitor:2": ("h", "r"), "monitor:77": ("h", "r"), "entry:x": ("h", "r")})
    beat.settle()
    assert beat.definitions.quarantine.take_unwritten().lifted == {"monitor:2", "monitor:77"}


def test_many_changes_are_kept_as_ids_only() -> None:
    table = TableOfMonitors(1)
    beat = Beat(table)
    beat.settle()
    table.log.extend(range(2, 200_002))
    beat.step()
    assert beat.follower.behind > 199_000
    assert isinstance(beat.follower._pending, np.ndarray)
