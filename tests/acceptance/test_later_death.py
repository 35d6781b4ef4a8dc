"""One-off runs in and out while the beat is killed again and again: none lost, none sent in vain, none executed twice.

Beside the stream of inserts, transactions stay open for a long time and a third of them rolls back; runs are cancelled
and moved. ``make soak-later`` lasts ten minutes, ``make test`` a few seconds.
"""

from __future__ import annotations

import json
import random
import signal
import time
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import pytest
from services import PrivatePostgres, PrivateRedis
from support.pauses import pause
from support.processes import DjangoProject, redis_conf
from support.site.settings import database_of

from celery_wheelbeat import later
from celery_wheelbeat.later.connections import caller_of
from celery_wheelbeat.later.ring import due_id
from celery_wheelbeat.later.run import LaterRun
from celery_wheelbeat.later.writers import writer_of

if TYPE_CHECKING:
    from pathlib import Path

    from support.processes import Process

pytestmark = [pytest.mark.processes, pytest.mark.redis]

STEP_S = 0.5
SURE_S = 5
"""What is changed is due later than this: a change is in force if it commits two seconds before."""


class Pace(NamedTuple):
    """How much happens."""

    lasts_s: float
    runs_a_s: int
    killed_every_s: float
    open_s: float
    """How long a slow transaction stays open; a new one begins every tenth of that."""


SHORT = Pace(9, 40, 4, 3)
LONG = Pace(600, 100, 30, 60)


class _Slow(NamedTuple):
    connection: Any
    ids: set[str]
    ends_s: float


class Story:
    """The application: what it wrote, and what has to come of it."""

    def __init__(self, url: str, pace: Pace, stack: ExitStack) -> None:
        self.expected: set[str] = set()
        self.never: set[str] = set()
        self.changed = {"cancelled": 0, "moved": 0, "committed": 0, "rolled back": 0}
        self._url = url
        self._pace = pace
        self._stack = stack
        self._connection = stack.enter_context(closing(psycopg.connect(url)))
        self._draw = random.Random(15)
        self._slow: list[_Slow] = []
        self._waiting: dict[str, int] = {}
        """Task id → due time in ms, of what may be cancelled or moved."""
        self._began_s = time.monotonic()

    def step(self) -> None:
        """Insert, cancel, move; begin and end slow transactions."""
        made = self._insert(self._connection, round(self._pace.runs_a_s * STEP_S), (0, 4, 12))
        self._connection.commit()
        self.expected |= made.keys()
        self._waiting.update(made)
        self._change()
        now_s = time.monotonic()
        if now_s - self._began_s >= self._pace.open_s / 10:
            self._began_s = now_s
            connection = self._stack.enter_context(closing(psycopg.connect(self._url)))
            ids = self._insert(connection, 10, (0, 2, self._pace.open_s * 2)).keys()
            self._slow.append(_Slow(connection, set(ids), now_s + self._pace.open_s))
        for slow in [slow for slow in self._slow if slow.ends_s <= now_s]:
            self._end(slow)

    def end(self) -> None:
        """End the transactions that are open."""
        for slow in list(self._slow):
            self._end(slow)

    def _insert(self, connection: Any, count: int, within_s: tuple[float, float, float]) -> dict[str, int]:
        now_ms = round(time.time() * 1000)
        low, _, high = within_s
        due_ms = [now_ms + round(1000 * self._draw.triangular(low, high, within_s[1])) for _ in range(count)]
        runs = [
            LaterRun(str(due_id(at_ms)), at_ms, None, "proj.note", f"[{n}]", "{}", "{}")
            for n, at_ms in enumerate(due_ms)
        ]
        writer_of(caller_of(connection)).insert(runs)
        return {run.id: run.at_ms for run in runs}

    def _change(self) -> None:
        sure_ms = round((time.time() + SURE_S) * 1000)
        self._waiting = {run_id: at_ms for run_id, at_ms in self._waiting.items() if at_ms > sure_ms}
        for run_id in self._draw.sample(sorted(self._waiting), min(2, len(self._waiting))):
            at_ms = self._waiting.pop(run_id)
            if self._draw.random() < 0.5:
                done = later.cancel(id=run_id, connection=self._connection) is later.Cancelled.CANCELLED
                kind, moved = "cancelled", None
            else:
                at = datetime.fromtimestamp(at_ms / 1000 + 3, UTC)
                moved = later.move(at, id=run_id, connection=self._connection)
                kind, done = "moved", moved is not None
            self._connection.commit()
            assert done
            assert time.time() < at_ms / 1000 - 2, "the test was stopped for too long to know what is in force"
            self.changed[kind] += 1
            self.expected.discard(run_id)
            self.never.add(run_id)
            if moved is not None:
                self.expected.add(moved)

    def _end(self, slow: _Slow) -> None:
        self._slow.remove(slow)
        if self._draw.random() < 1 / 3:
            slow.connection.rollback()
            self.never |= slow.ids
            self.changed["rolled back"] += 1
        else:
            slow.connection.commit()
            self.expected |= slow.ids
            self.changed["committed"] += 1
        slow.connection.close()


def executed(project: DjangoProject) -> list[str]:
    """Return the task id of every execution."""
    return [run.id for run in project.runs()]


def killed(beat: Process, project: DjangoProject) -> Process:
    """Kill the beat and return the next one."""
    beat.send(signal.SIGKILL)
    beat.wait()
    return project.beat()


@pytest.mark.parametrize(
    "pace",
    [
        pytest.param(SHORT, id="seconds"),
        pytest.param(LONG, id="minutes", marks=[pytest.mark.soak, pytest.mark.timeout(1_800)]),
    ],
)
def test_killed_beats_lose_nothing_and_nothing_runs_twice(tmp_path: Path, pace: Pace) -> None:
    with (
        PrivatePostgres() as postgres,
        PrivateRedis() as broker,
        DjangoProject(
            tmp_path,
            redis_conf(broker.url, wheelbeat_dedup_url=broker.url),
            database=database_of(postgres.url),
        ) as project,
        ExitStack() as stack,
    ):
        story = Story(postgres.url, pace, stack)
        project.worker()
        beat = project.beat()
        beat.wait_for("wheelbeat")
        began_s = killed_s = time.monotonic()
        kills = 0
        while (now_s := time.monotonic()) - began_s < pace.lasts_s:
            story.step()
            if now_s - killed_s >= pace.killed_every_s:
                beat, killed_s, kills = killed(beat, project), now_s, kills + 1
            pause(STEP_S - (time.monotonic() - now_s), "the pace of the story")
        story.end()
        project.wait_for(
            lambda: story.expected <= set(executed(project)), "every run is executed", timeout_s=120 + pace.lasts_s / 4
        )
        assert beat.stop() == 0
        ids = executed(project)
        assert set(ids) == story.expected
        assert len(ids) == len(story.expected), "executed twice"
        assert not story.never & set(ids)
        assert kills >= 2
        assert min(story.changed.values()) > 0, story.changed
        with psycopg.connect(postgres.url) as connection:
            (status,) = connection.execute("SELECT status FROM wheelbeat_beat ORDER BY seen_at DESC LIMIT 1").fetchone()
            updates = (
                "SELECT coalesce(sum(n_tup_upd), 0) FROM pg_stat_user_tables WHERE relname LIKE 'wheelbeat_later%'"
            )
            assert connection.execute(updates).fetchone() == (0,)
        assert json.loads(status)["runs"]["difference"] == 0
        assert json.loads(status)["watchdog"] == {}
