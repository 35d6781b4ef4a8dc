"""A world under one seed: people edit monitors, machines fail, beats crash and start again, and time goes on.

Each seed draws which kinds of faults its world knows (few of them: a fault hides others), the settings of its beats,
and what happens. The same seed always gives the same world.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.schedules import crontab, schedule

from celery_wheelbeat.errors import SourceError
from celery_wheelbeat.settings import Settings
from celery_wheelbeat.sources import MonitorDatabase
from simulation.auditor import Auditor
from simulation.edits import Edits
from simulation.expectation import Job, Rules
from simulation.fire_times import entry_id, entry_plan
from simulation.life import Life
from simulation.promises import AuditError
from simulation.sim_broker import SimBroker, SimPublisher
from simulation.sim_clock import SimClock
from simulation.sim_database import Link, SimSource, SimStore, SimTable

if TYPE_CHECKING:
    from collections.abc import Mapping

BEGINNINGS = (
    1_774_745_700_000,  # 2026-03-29 00:55 UTC, five minutes before Berlin skips an hour
    1_792_889_700_000,  # 2026-10-25 00:55 UTC, five minutes before Berlin repeats an hour
    1_835_395_170_400,  # 2028-02-28 23:59:30.4 UTC, before a leap day
    1_700_000_000_123,
)
FAULTS = (
    "crash", "restart", "database down", "database flaky", "cursor lost", "log late", "commit late", "untriggered",
    "broker down", "broker faults", "broker slow", "queue full", "poison", "unroutable", "stall", "long stall",
    "suspended", "clock ahead", "clock back", "clock jitter", "slow turns",
)  # fmt: skip
ENTRIES: Mapping[str, tuple[int | None, str | None]] = {
    "every 7": (7, None),
    "every 90": (90, None),
    "minutely": (None, "* * * * *"),
    "nightly": (None, "0 1 * * *"),
}
ENTRY_EDITS = 0.03
"""How often a turn begins with one."""
EPILOGUE_MS = 15_000
"""At the end everything works for this long, and then nothing may be left undone."""
BACKLOG_TURNS = 20
"""A backlog is no longer than what so many turns can send: the turns of a beat that drains are short and many."""
DRAIN_TURNS = 3_000
SETTLE_MS = 4_000
"""What was sent last has to be written down."""
RECONCILE_MS = 40_000
"""The same where edits went past the log: two rounds of the reconcile."""


class CrashError(BaseException):
    """The process is gone. No ``except Exception`` of the beat may hold it up."""


class Report(NamedTuple):
    """What one world came to."""

    seed: int
    turns: int
    runs: int
    lives: int
    faults: list[str]


class World:
    """See the module."""

    def __init__(self, seed: int, *, length_ms: int = 30_000) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.faults = set(rng.sample(FAULTS, rng.randint(0, 5)))
        if "untriggered" in self.faults:
            self.faults.discard("slow turns")  # the reconcile rests fifty times as long as a slow block took
        self.length_ms = length_ms
        self.clock = SimClock(rng.choice(BEGINNINGS) + rng.randint(0, 400_000))
        self.table = SimTable(self.clock)
        self.broker = SimBroker()
        self.settings = Settings(
            tick=rng.choice([1.0, 1.0, 1.0, 1.0, 0.5, 0.1]),
            shards=rng.choice([1, 2, 4]),
            namespace="simulated",
            stall_limit=rng.choice([10.0, 30.0, 300.0]),
            misfire_gap=rng.choice([10.0, 60.0, 900.0]),
            restart_lookback=rng.choice([0.0, 5.0, 20.0]),
            backlog_max=rng.choice([25, 1_000, 1_000_000]),
            window=rng.choice([6, 40, 4_000]),
            reconcile_period=10.0,
        )
        longest = BACKLOG_TURNS * self.settings.window
        self.settings = replace(self.settings, backlog_max=min(self.settings.backlog_max, longest))
        self.deadline_s = rng.choice([None, 45.0])
        settings, deadline_s = self.settings, self.deadline_s
        rules = Rules(
            settings.tick_ms, settings.stall_limit_ms, settings.backlog_max, settings.misfire_gap_ms,
            settings.restart_lookback_ms, None if deadline_s is None else int(deadline_s * 1000),
        )  # fmt: skip
        self.auditor = Auditor(self.table, self.clock, rules, {})
        self.edits = Edits(self.table, self.clock, rng, self.faults)
        self.calm = False
        self.lives = 0
        self.life: Life | None = None
        self._database_up = True
        self._link: Link | None = None
        self._crash_in: int | None = None
        self._in_io = False

    def run(self) -> Report:
        """Live through the world; raises ``AuditError`` where a promise is broken."""
        for _ in range(self.rng.randint(0, 8)):
            self.edits.edit()
        while self.clock.elapsed_ms < self.length_ms:
            self._misfortune()
            self._edit_entries()
            self._turn()
        self._make_peace()
        end_ms = self.clock.elapsed_ms + (RECONCILE_MS if "untriggered" in self.faults else EPILOGUE_MS)
        while self.clock.elapsed_ms < end_ms:
            self._turn()
        for _ in range(DRAIN_TURNS):
            if not self.auditor.overdue():
                break
            self._turn()  # a narrow window takes its time over a long backlog
        end_ms = self.clock.elapsed_ms + SETTLE_MS
        while self.clock.elapsed_ms < end_ms:
            self._turn()
        self.auditor.epilogue(self.broker)
        assert self.life is not None
        self.life.close()
        self.auditor.closed()
        return Report(self.seed, self.auditor.turns, self.auditor.runs, self.lives, sorted(self.faults))

    # One turn of the scheduling thread, and what happens around it.

    def _turn(self) -> None:
        try:
            if self.life is None:
                self.life = self._begin()
            self.life.turn()
        except CrashError:
            self._end("crash")

    def _begin(self) -> Life:
        self.lives += 1
        chosen = sorted(name for name in ENTRIES if self.rng.random() < 0.4)
        self.auditor.entries = {name: _entry_job(name) for name in chosen}
        self._link = Link(self.rng, reach=self._reach_database, disturb=self.auditor.disturb)
        self._link.block_rows = self.rng.choice([1, 2, 4, 100])
        self._link.lost_cursor_rate = self._rate("cursor lost", 0.1)
        self._link.late_rate = self._rate("log late", 0.3)
        publisher = SimPublisher(
            self.broker,
            self.clock,
            self.rng,
            life=self.lives,
            window=self.settings.window,
            reach=self._reach,
            disturb=self.auditor.disturb,
        )
        return Life(
            database=MonitorDatabase("simulated", SimSource(self.table, self._link), SimStore(self.table, self._link)),
            clock=self.clock,
            settings=self.settings,
            deadline_s=self.deadline_s,
            entries={name: {"task": "probe", "schedule": _celery_schedule(name)} for name in chosen},
            publisher=publisher,
            auditor=self.auditor,
            rest=self._rest,
            reach=self._reach,
        )

    def _edit_entries(self) -> None:
        """Somebody's code adds an entry to the schedule of a running beat, or removes one."""
        if self.life is None or self.rng.random() > ENTRY_EDITS:
            return
        name = self.rng.choice(sorted(ENTRIES))
        entries = self.auditor.entries
        if name in entries:
            self.life.remove_entry(name)
            del entries[name]
        else:
            self.life.add_entry(name, {"task": "probe", "schedule": _celery_schedule(name)})
            entries[name] = _entry_job(name)
        self.auditor.entry_edited(entry_id(name), entries.get(name))

    def _end(self, how: str) -> None:
        life, self.life, self._crash_in = self.life, None, None
        if life is not None:
            if how == "crash":
                life.crash()
            else:
                life.close()
                self.auditor.closed()
        self.auditor.disturb()
        self._let_pass(self.rng.choice([0, 300, 2_000, 9_000, 70_000, 4_000_000]))

    def _rest(self, seconds: float) -> None:
        """The scheduling thread waits: everybody else has a turn."""
        self.auditor.turn_ended()
        left_ms = int(seconds * 1000) + 1
        while left_ms > 0:
            part_ms = min(left_ms, self.rng.choice([20, 150, 1_001, 1_001]))
            left_ms -= part_ms
            self.clock.let_pass(part_ms)
            if self._others():
                break

    def _others(self) -> bool:
        """Give the I/O thread, the publisher and the people a turn; says whether they ring."""
        assert self.life is not None
        self.table.commit_due()
        if not self.calm and self.rng.random() < 0.2:
            self.edits.edit()
        self._in_io = True
        try:
            rings = self.life.publisher.step()
            return self.life.sources.turn() or rings
        finally:
            self._in_io = False

    def _reach(self, _place: str) -> None:
        """A step of the process: it may be its last, it may take long, and the other threads go on meanwhile."""
        if self._crash_in is not None:
            self._crash_in -= 1
            if self._crash_in <= 0:
                raise CrashError
        if "slow turns" in self.faults and not self.calm and self.rng.random() < 0.1:
            self.auditor.disturb()
            self.clock.let_pass(self.rng.randint(1, 1_500))
            if not self._in_io and self.life is not None:
                self._others()

    def _reach_database(self, place: str) -> None:
        self._reach(place)
        flaky = not self.calm and "database flaky" in self.faults and self.rng.random() < 0.15
        if flaky or not self._database_up:
            self.auditor.disturb()
            raise SourceError(f"{place}: no answer")

    # Faults.

    def _misfortune(self) -> None:
        if not self.faults or self.rng.random() > 0.18:
            return
        fault = self.rng.choice(sorted(self.faults))
        happens = getattr(self, "_" + fault.replace(" ", "_"), None)
        if happens is not None:
            self.auditor.disturb()
            happens()

    def _crash(self) -> None:
        self._crash_in = self.rng.randint(1, 60)

    def _restart(self) -> None:
        if self.life is not None:
            try:
                self._end("close")
            except CrashError:
                self._end("crash")

    def _database_down(self) -> None:
        self._database_up = not self._database_up

    def _broker_down(self) -> None:
        self.broker.up = not self.broker.up

    def _broker_faults(self) -> None:
        self.broker.fault_rate = self.rng.choice([0.0, 0.1, 0.5])

    def _broker_slow(self) -> None:
        self.broker.slow = not self.broker.slow

    def _queue_full(self) -> None:
        jobs = [*sorted(self.table.rows), *(entry_id(name) for name in ENTRIES)]
        self.broker.full = set(self.rng.sample(jobs, self.rng.choice([0, 0, 2, len(jobs)])))

    def _poison(self) -> None:
        self.broker.poisoned = set(self.rng.sample(sorted(self.table.rows), min(2, len(self.table.rows))))

    def _unroutable(self) -> None:
        self.broker.unroutable = set(self.rng.sample(sorted(self.table.rows), min(2, len(self.table.rows))))

    def _stall(self) -> None:
        self._let_pass(self.rng.choice([1_500, 4_000, 9_000, 25_000]))

    def _long_stall(self) -> None:
        self._let_pass(self.rng.choice([31_000, 400_000, 4_000_000]))

    def _suspended(self) -> None:
        self.clock.suspend(self.rng.choice([2_000, 20_000, 900_000]))

    def _clock_ahead(self) -> None:
        self.clock.step(self.rng.choice([900, 4_000, 20_000, 3_600_000]))

    def _clock_back(self) -> None:
        self.clock.step(-self.rng.choice([6_000, 20_000, 3_600_000]))

    def _clock_jitter(self) -> None:
        self.clock.step(self.rng.choice([-4_900, -1_000, -200, 300]))

    def _let_pass(self, ms: int) -> None:
        self.clock.let_pass(ms)
        self.table.commit_due()

    def _rate(self, fault: str, rate: float) -> float:
        return rate if fault in self.faults and not self.calm else 0.0

    def _make_peace(self) -> None:
        self.calm = True
        self._crash_in = None
        self._database_up = self.broker.up = True
        self.broker.fault_rate, self.broker.slow = 0.0, False
        self.broker.poisoned = self.broker.unroutable = self.broker.full = set()
        if self._link is not None:
            self._link.lost_cursor_rate = self._link.late_rate = 0.0
            self._link.block_rows = 100
        self.auditor.disturb()


def run_seed(seed: int) -> Report:
    """Run one world; an error names the seed and how to see it again."""
    world = World(seed)
    try:
        return world.run()
    except Exception as error:
        where = f"after {world.clock.elapsed_ms / 1000:.3f} s, life {world.lives}, faults {sorted(world.faults)}"
        again = f"python -m simulation {seed}"
        raise AuditError(f"seed {seed} {where}: {error}\nsee it again: (cd tests && {again})") from error


def _celery_schedule(name: str) -> Any:
    seconds, expression = ENTRIES[name]
    return schedule(seconds) if seconds else crontab(*(expression or "").split())


def _entry_job(name: str) -> Job:
    seconds, expression = ENTRIES[name]
    plan = entry_plan(name, seconds, expression)
    return Job(entry_id(name), f"entry:{name}", plan, True, "latest", False, 0)
