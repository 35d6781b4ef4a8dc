"""A world of writers, rollbacks, slow transactions, crashes of the beat and failovers: every committed row is read.

The world is PostgreSQL's visibility in small: transaction ids in the order of their assignment, snapshots, commits.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from celery_wheelbeat.later.open_seconds import OpenSeconds, Resume, TransactionSnapshot

WORLDS = 400
SOAK_WORLDS = 10_000


@dataclass
class Row:
    second: int
    xid: int
    number: int


@dataclass
class World:
    """A database: its clock in tenths of seconds, running transactions and committed rows."""

    rng: random.Random
    now: int = 1_000_000
    next_xid: int = 100
    last_ended: int = 99
    running: dict[int, list[Row]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    numbers: int = 0

    @property
    def now_s(self) -> int:
        return self.now // 10

    def begin(self) -> int:
        xid, self.next_xid = self.next_xid, self.next_xid + 1
        self.running[xid] = []
        return xid

    def insert(self, xid: int) -> None:
        """Place a row as the statement does: the clock is read when the transaction has its id."""
        asked_s = self.now_s + self.rng.choice([-50, 0, 0, 1, 2, 5, 20, 40])
        self.numbers += 1
        self.running[xid].append(Row(max(asked_s, self.now_s + 1), xid, self.numbers))

    def end(self, xid: int) -> None:
        rows = self.running.pop(xid)
        self.last_ended = max(self.last_ended, xid)
        if self.rng.random() < 0.7:
            self.rows += rows

    def snapshot(self) -> TransactionSnapshot:
        """Return a snapshot as PostgreSQL has it: ``xmax`` is not the next id, but the last that has ended plus one."""
        xmax = self.last_ended + 1
        return TransactionSnapshot(
            min([*self.running, xmax]), xmax, tuple(sorted(xid for xid in self.running if xid < xmax))
        )


class Reader:
    """A beat: reads by plan, settles what is due at random, stores its resume now and then."""

    def __init__(self, world: World, resume: Resume, read: set[int]) -> None:
        self.world = world
        self.open = OpenSeconds(resume)
        self.stored = resume
        self.read = read
        self.waiting: dict[int, int] = {}
        self.now_s = 0
        self.early: list[Row] = []

    def poll(self, ahead_s: int) -> None:
        if passed := self.open.passed(self.now_s):
            xid = self.world.begin()
            self.world.end(xid)
            self.open.note_passed(passed, xid)
        now_s = self.world.now_s
        self.world.now += self.world.rng.choice([0, 0, 1, 15])  # time between the begin and the snapshot
        snapshot = self.world.snapshot()
        self.open.continues(snapshot, "server")
        last = self.open.snapshot
        plan = self.open.plan(now_s + ahead_s)
        late, new = set(plan.late_s), set(plan.new_s)
        for row in self.world.rows:
            unseen = last is not None and not last.sees(row.xid)
            if row.second in new or (row.second in late and unseen):
                self.read.add(row.number)
                self.waiting[row.number] = row.second
        self.open.polled(plan, snapshot)
        self.now_s = now_s

    def settle(self) -> None:
        for number, second in list(self.waiting.items()):
            if second <= self.world.now_s and self.world.rng.random() < 0.6:
                del self.waiting[number]

    def store(self) -> None:
        self.stored = self.open.state().before(self.waiting.values())


def run_world(seed: int) -> None:
    rng = random.Random(seed)
    world = World(rng)
    read: set[int] = set()
    start = Resume(world.now_s - 1, world.now_s - 1, None)
    reader = Reader(world, start, read)
    for _ in range(rng.randrange(20, 200)):
        world.now += rng.choice([0, 1, 3, 10, 40])
        match rng.randrange(10):
            case 0 | 1:
                world.begin()
            case 2 | 3 | 4 if world.running:
                world.insert(rng.choice(list(world.running)))
            case 5 if world.running:
                world.end(rng.choice(list(world.running)))
            case 6 | 7:
                reader.poll(rng.choice([0, 1, 10]))
            case 8:
                reader.settle()
                reader.store()
            case 9 if rng.random() < 0.4:
                # what waits in the memory of a dead beat has not been settled: the next one must read it again
                read -= set(reader.waiting)
                reader = Reader(world, reader.stored, read)
        assert reader.stored.done_s >= reader.stored.closed_s
    for xid in list(world.running):
        world.end(xid)
    world.now += 10 * 100
    for _ in range(4):
        reader.poll(10)
        world.now += 30
    missed = [row for row in world.rows if row.number not in read]
    assert missed == []
    assert reader.open.closed_s >= max((row.second for row in world.rows), default=0)


def test_every_committed_row_is_read_after_slow_writers_and_crashes() -> None:
    for seed in range(WORLDS):
        run_world(seed)


@pytest.mark.soak
def test_ten_thousand_worlds() -> None:
    for seed in range(WORLDS, WORLDS + SOAK_WORLDS):
        run_world(seed)


def test_a_second_is_not_closed_while_a_transaction_that_may_write_into_it_is_open() -> None:
    seconds = OpenSeconds(Resume(9, 9, None))
    for snapshot in [(5, 5, ()), (5, 9, (5,)), (5, 50, (5,))]:
        seconds.polled(seconds.plan(10), TransactionSnapshot(*snapshot))
        assert seconds.passed(11) == []
        seconds.note_passed(seconds.passed(12), 8)
        assert seconds.closed_s == 9
    seconds.polled(seconds.plan(10), TransactionSnapshot(8, 51, (8,)))
    assert seconds.closed_s == 10


def test_ids_that_begin_anew_open_every_second_again() -> None:
    seconds = OpenSeconds(Resume(9, 9, None))
    seconds.polled(seconds.plan(20), TransactionSnapshot(5, 5))
    seconds.note_passed(seconds.passed(15), 5)
    seconds.polled(seconds.plan(20), TransactionSnapshot(6, 6))
    assert seconds.continues(TransactionSnapshot(7, 7), "a") is False
    assert seconds.plan(20).new_s == list(range(14, 21))


@pytest.mark.parametrize(
    "broken",
    [{}, {"closed_s": 5, "done_s": 3}, {"closed_s": "5", "done_s": 6}, {"closed_s": 1, "done_s": 2, "snapshot": "x"}],
)
def test_a_stored_document_that_is_none_is_ignored(broken: dict[str, object]) -> None:
    assert Resume.read(broken) is None


def test_a_stored_document_comes_back() -> None:
    resume = Resume(5, 7, "3:9:4,5", "server")
    assert Resume.read(resume._asdict()) == resume
