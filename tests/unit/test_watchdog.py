"""The watchdog against damage of every kind: each is found in one rotation, healed and counted, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.engine.definitions import Job, changes_of

from celery_wheelbeat.engine import EngineConfig
from celery_wheelbeat.engine.engine import Engine
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.engine.packing import narrowed
from celery_wheelbeat.engine.payloads import PAGE_ROWS
from celery_wheelbeat.engine.watchdog import FINDINGS
from celery_wheelbeat.schedules.cron import Cron, CronTable
from celery_wheelbeat.schedules.kinds import NEVER_MS, Asked

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_wheelbeat.engine.shard import Shard

T = 1_750_000_020_000
"""A whole minute."""
SHARDS = 4
WHILE_S = 300


class Never:
    """A foreign schedule without fire times."""

    def ask(self, now_ms: int) -> Asked:
        return Asked(None, now_ms + 60_000)


def jobs() -> list[Job]:
    """Jobs of every kind, many in each shard."""
    plain = [Job(n, interval_ms=(30_000, 60_000, 7_200_000)[n % 3]) for n in range(400)]
    crons = [Job(n, cron=Cron("*/5 * * * *"), offset_ms=n % 30 * 1000) for n in range(400, 440)]
    bounded = [Job(n, interval_ms=60_000, end_ms=T + 10**9) for n in range(440, 480)]
    between = [Job(480, interval_ms=1_500), Job(481, interval_ms=250), Job(482, interval_ms=1_500)]
    polled = [Job(n, polled=Never()) for n in range(484, 488)]
    return plain + crons + bounded + between + polled + [Job(-n, interval_ms=45_000) for n in range(1, 9)]


@pytest.fixture
def engine() -> Engine:
    """An engine that has run for some minutes and was edited, swept once all around."""
    engine = Engine(EngineConfig(shards=SHARDS), CronTable(), Ledger())
    engine.start(T)
    engine.apply(changes_of(engine.crons, *jobs()))
    engine.advance(T + 199_000)
    assert rotation(engine) == {}
    engine.advance(T + 259_000)
    engine.apply(changes_of(engine.crons, *jobs()[:20], deleted=[399, 398]))
    engine.advance(T + 261_000)
    return engine


def rotation(engine: Engine) -> dict[str, int]:
    """Sweep every shard once; returns what was found."""
    counts: dict[str, int] = {}
    for number in range(SHARDS):
        for finding, count in engine.sweep(number).counts.items():
            counts[finding] = counts.get(finding, 0) + count
    return counts


def entry(row: int) -> bytes:
    """What the wheel keeps of one row."""
    return np.uint32(row).tobytes()


def add_to(places: dict[int, bytes], place: int, rows: bytes) -> None:
    """File more rows."""
    places[place] = places.get(place, b"") + rows


def lose_a_slot(shard: Shard) -> None:
    """Drop a whole slot."""
    shard.wheel.slots.pop(max(shard.wheel.slots))


def lose_a_window(shard: Shard) -> None:
    """Drop a far window."""
    shard.wheel.far.popitem()


def lose_an_entry(shard: Shard) -> None:
    """Drop one entry."""
    tick = max(shard.wheel.slots)
    shard.wheel.slots[tick] = shard.wheel.slots[tick][:-4]


def misfile_a_slot(shard: Shard) -> None:
    """Move a slot to another tick."""
    slots = shard.wheel.slots
    slots[max(slots) + 1] = slots.pop(max(slots))


def file_in_the_past(shard: Shard) -> None:
    """Move a slot behind the cursor."""
    shard.wheel.slots[shard.cursor - 5] = shard.wheel.slots.pop(max(shard.wheel.slots))


def double_an_entry(shard: Shard) -> None:
    """File a row twice."""
    tick = max(shard.wheel.slots)
    shard.wheel.slots[tick] += shard.wheel.slots[tick][:4]


def forget_a_mark(shard: Shard) -> None:
    """Leave an entry behind without marking its slot."""
    add_to(shard.wheel.slots, shard.cursor + 17, entry(0))


def point_outside(shard: Shard) -> None:
    """Add a row that does not exist."""
    add_to(shard.wheel.slots, shard.cursor + 3, entry(10**6))


def point_outside_far(shard: Shard) -> None:
    """Add a row that does not exist to a far window."""
    add_to(shard.wheel.far, next(iter(shard.wheel.far)), entry(2**32 - 1))


def move_the_edge(shard: Shard) -> None:
    """Move the border of the far windows."""
    shard.wheel.edge += 3_600


def unarm(shard: Shard) -> None:
    """Set a fire time to never."""
    shard.table.columns.next_fire[3] = NEVER_MS


def arm_in_the_past(shard: Shard) -> None:
    """Set a fire time to yesterday."""
    shard.table.columns.next_fire[3] -= 86_400_000


def shift_off_the_grid(shard: Shard) -> None:
    """Move a fire time by a little."""
    shard.table.columns.next_fire[3] += 1


def arm_what_is_off(shard: Shard) -> None:
    """Arm the deleted."""
    rows = np.flatnonzero(shard.table.rows.next_fire != NEVER_MS)
    shard.table.columns.flags[rows[5]] &= 0xFFFE


def swap_ids(shard: Shard) -> None:
    """Exchange two ids."""
    ids = shard.table.columns.ids
    ids[[4, 5]] = ids[[5, 4]]


def take_a_foreign_id(shard: Shard) -> None:
    """Give a row the id of another shard."""
    shard.table.columns.ids[shard.table.row_count - 1] += 1


def repeat_an_id(shard: Shard) -> None:
    """Give two rows one id."""
    shard.table.columns.ids[6] = shard.table.columns.ids[5]


def change_an_interval(shard: Shard) -> None:
    """Change a definition."""
    shard.table.columns.interval[3] *= 2


def change_a_route(shard: Shard) -> None:
    """Send a job elsewhere."""
    shard.table.columns.route[3] += 1


def lose_an_interval(shard: Shard) -> None:
    """Zero an interval."""
    shard.table.columns.interval[3] = 0


def point_to_no_cron(shard: Shard) -> None:
    """Point to a cron group that does not exist."""
    shard.table.columns.interval[3] = narrowed(np.array([~(77 << 32)]))[0]


def lose_rare_attributes(shard: Shard) -> None:
    """Forget what few jobs have."""
    shard.table.rare.popitem()


def point_to_no_payload(shard: Shard) -> None:
    """Point to a page that does not exist."""
    shard.table.columns.ref[3] = 2**31


def lose_the_overlay(shard: Shard) -> None:
    """Forget where ids out of order are."""
    shard.table.overlay[10**9] = 3


def move_a_shards_cursor(shard: Shard) -> None:
    """Let one shard believe in another time."""
    shard.cursor += 100


DAMAGE = [
    (lose_a_slot, {"lost"}),
    (lose_a_window, {"lost"}),
    (lose_an_entry, {"lost"}),
    (misfile_a_slot, {"misfiled", "ghost"}),
    (file_in_the_past, {"misfiled", "ghost"}),
    (double_an_entry, {"double"}),
    (forget_a_mark, {"ghost"}),
    (point_outside, {"ghost"}),
    (point_outside_far, {"ghost"}),
    (move_the_edge, {"edge", "ghost", "misfiled"}),
    (unarm, {"off_grid"}),
    (arm_in_the_past, {"past_due"}),
    (shift_off_the_grid, {"off_grid"}),
    (arm_what_is_off, {"definition", "off_grid"}),
    (swap_ids, {"unsorted", "off_grid"}),
    (take_a_foreign_id, {"foreign"}),
    (repeat_an_id, {"unsorted", "foreign"}),
    (change_an_interval, {"definition", "off_grid"}),
    (change_a_route, {"definition"}),
    (lose_an_interval, {"definition"}),
    (point_to_no_cron, {"definition"}),
    (lose_rare_attributes, {"definition"}),
    (point_to_no_payload, {"payload"}),
    (lose_the_overlay, {"unsorted"}),
    (move_a_shards_cursor, {"cursor", "edge", "ghost", "misfiled", "lost", "past_due"}),
]


def comes_back(engine: Engine, reports: list) -> None:
    """Do what the reports ask for, as the scheduler does: read the named jobs, or everything, again."""
    everything = [job for job in jobs() if job.id not in (398, 399)]
    for report in reports:
        wanted = everything if report.resync else [job for job in everything if job.id in report.reload_ids]
        unknown = [] if not report.resync else sorted(known_ids(engine) - {job.id for job in everything})
        engine.apply(changes_of(engine.crons, *wanted, deleted=unknown))


def known_ids(engine: Engine) -> set[int]:
    """All ids in the tables."""
    return {job_id for shard in engine.shards for job_id in shard.table.living_rows().ids.tolist()}


def fire_for_a_while(engine: Engine) -> list[tuple[int, int]]:
    """Run five minutes."""
    found = []
    begin = engine.cursor_ms
    for second in (*range(1, 10), *range(10, WHILE_S, 29), WHILE_S):
        for batch in engine.advance(begin + 1_000 * second):
            found += zip(batch.fire_ms.tolist(), batch.ids.tolist(), strict=True)
    return sorted(found)


def test_an_undamaged_engine_is_healthy(engine):
    assert rotation(engine) == {}
    fire_for_a_while(engine)
    assert rotation(engine) == {}


@pytest.mark.parametrize(("damage", "findings"), DAMAGE, ids=lambda value: getattr(value, "__name__", ""))
def test_damage_is_found_healed_and_counted(engine, damage: Callable[[Shard], None], findings: set[str]):
    number = 3
    damage(engine.shards[number])
    reports = [engine.sweep(swept) for swept in range(SHARDS)]
    found = {finding for report in reports for finding in report.counts}
    assert found, "the damage was not noticed"
    assert found <= findings <= set(FINDINGS)
    assert {report.shard for report in reports if report.counts} == {number}
    comes_back(engine, reports)
    assert rotation(engine) == {}
    begin = engine.cursor_ms
    expected = sorted(
        (fire, job.id)
        for job in jobs()
        if job.id not in (398, 399) and job.polled is None
        for fire in fires(job, begin, begin + WHILE_S * 1000)
    )
    assert fire_for_a_while(engine) == expected
    assert rotation(engine) == {}


def fires(job: Job, after_ms: int, until_ms: int) -> list[int]:
    """List fire times by walking the scalar schedule."""
    found = []
    schedule = job.schedule
    fire_ms = schedule.next_fire(after_ms)
    while fire_ms is not None and fire_ms <= until_ms:
        found.append(fire_ms)
        fire_ms = schedule.next_fire(fire_ms)
    return found


def test_lost_runs_are_entered_into_the_account(engine):
    for shard in engine.shards:
        shard.wheel.slots.clear()
        shard.wheel.far.clear()
    begin = engine.cursor_ms
    passed = fire_for_a_while(engine)
    before = engine.ledger.expected
    found = rotation(engine)
    missed = sum(
        len(fires(job, begin, begin + WHILE_S * 1000))
        for job in jobs()
        if job.id not in (398, 399) and job.polled is None
    )
    assert found["uncounted"] == missed - len(passed)
    assert engine.ledger.skipped["error"] == found["uncounted"] == engine.ledger.expected - before
    assert found["past_due"] > 0


def test_a_run_that_fires_twice_is_surplus(engine):
    shard = engine.shards[0]
    tick = min(tick for tick in shard.wheel.slots if tick not in shard.wheel.dirty_slots)
    shard.wheel.slots[tick] += shard.wheel.slots[tick][:4]
    while engine.cursor < tick:
        engine.advance((engine.cursor + 1) * 1_000)
    assert engine.sweep(0).counts["surplus"] == 1


def test_the_engines_own_cursor_is_restored(engine):
    right = engine.cursor
    engine.cursor += 5_000
    assert engine.sweep(2).counts == {"cursor": 1}
    assert engine.cursor == right
    assert rotation(engine) == {}


def test_jobs_missing_from_the_lane_come_back(engine):
    engine.poll_lane.jobs.remove(484)
    report = engine.sweep(0)
    assert report.counts == {"lost": 1}
    assert report.reload_ids == [484]


def test_a_damaged_page_switches_off_whatever_reads_it():
    engine = Engine(EngineConfig(shards=2), CronTable(), Ledger())
    engine.start(T)
    engine.apply(changes_of(engine.crons, *(Job(n, interval_ms=60_000) for n in range(PAGE_ROWS + 100))))
    payloads = engine.shards.payloads
    number = next(number for number, page in enumerate(payloads._pages) if page)
    payloads._pages[number] = payloads._pages[number]._replace(payloads=b"?" * len(payloads._pages[number].payloads))
    reports = [engine.sweep(0), engine.sweep(1)]
    assert sum(report.counts["payload"] for report in reports) == PAGE_ROWS
    assert sorted(reports[0].reload_ids + reports[1].reload_ids) == list(range(PAGE_ROWS))
    assert len(engine) == 100
    assert engine.sweep(0).healthy
    assert engine.sweep(1).healthy


def test_sweeps_move_what_is_alive_out_of_dead_pages():
    engine = Engine(EngineConfig(shards=2), CronTable(), Ledger())
    engine.start(T)
    everything = [Job(n, interval_ms=60_000, payload=b"[[%d],{}]" % n) for n in range(2 * PAGE_ROWS)]
    engine.apply(changes_of(engine.crons, *everything))
    engine.apply(changes_of(engine.crons, deleted=[n for n in range(2 * PAGE_ROWS) if n % 10]))
    before = engine.stats().payload_bytes
    assert engine.sweep(0).healthy
    assert engine.sweep(1).healthy
    assert engine.stats().payload_bytes < before / 4
    views = engine.lookup(range(0, 2 * PAGE_ROWS, 10))
    assert [view.payload for view in views] == [b"[[%d],{}]" % n for n in range(0, 2 * PAGE_ROWS, 10)]
