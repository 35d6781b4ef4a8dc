"""A beat and a database whose clocks differ: single runs are run once, whatever either of them says about the time.

The database is real, with its own clock; the beat's is simulated, ahead of it or behind it.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from support.beat.stepped import SteppedBeat
from support.changelog.places import monitor

from django_wheelbeat.models import Monitor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.changelog.places import Place

MINUTE_MS = 60_000


@pytest.fixture(params=[-MINUTE_MS, 0, MINUTE_MS], ids=["database ahead", "together", "database behind"])
def skew_ms(request: pytest.FixtureRequest) -> int:
    """How far the beat's clock is ahead of the database's."""
    return int(request.param)


@pytest.fixture
def beat(place: Place, skew_ms: int) -> Iterator[SteppedBeat]:
    """A beat that has loaded an empty table."""
    beat = begin(place, skew_ms)
    yield beat
    beat.close()


def begin(place: Place, skew_ms: int) -> SteppedBeat:
    beat = SteppedBeat(place.open(), start_ms=time.time_ns() // 1_000_000 + skew_ms)
    return beat.until(lambda: beat.current, "the load")


def again(beat: SteppedBeat, place: Place, skew_ms: int) -> SteppedBeat:
    """Stop the beat and start another one."""
    beat.run(3)
    beat.close()
    return begin(place, skew_ms)


def at(beat: SteppedBeat, seconds: float) -> datetime:
    """An instant of the beat's clock, on a whole second."""
    return datetime.fromtimestamp(beat.clock.wall_ms() // 1_000 + seconds, UTC)


def ms(instant: datetime) -> int:
    return round(instant.timestamp() * 1_000)


@pytest.mark.parametrize("due_s", [-86_400, -1, 0, 5])
def test_a_single_run_comes_once_late_rather_than_never(
    place: Place, beat: SteppedBeat, skew_ms: int, due_s: int
) -> None:
    once = monitor("once", interval_ms=None, once_at=at(beat, due_s), args="[1]")
    beat.until(lambda: beat.sent(once.pk), "the run")
    beat.until(lambda: Monitor.objects.get().finished_at, "its end is noted")
    beat.run(10)
    assert beat.sent(once.pk) == [ms(once.once_at)]
    assert beat.difference == 0
    assert beat.account["removed"] == 0
    following = again(beat, place, skew_ms).run(5)
    assert following.fires() == {}
    following.close()


@pytest.mark.parametrize("due_s", [-86_400, -1, 20])
def test_a_single_run_that_was_stored_while_no_beat_ran_comes_with_the_start(
    place: Place, skew_ms: int, due_s: int
) -> None:
    due_ms = time.time_ns() // 1_000_000_000 * 1_000 + skew_ms + due_s * 1_000
    once = monitor("once", interval_ms=None, once_at=datetime.fromtimestamp(due_ms / 1_000, UTC), args="[1]")
    beat = begin(place, skew_ms)
    beat.until(lambda: beat.sent(once.pk), "the run").run(10)
    assert beat.sent(once.pk) == [due_ms]
    assert Monitor.objects.get().finished_at is not None
    assert beat.difference == 0
    beat.close()


def test_a_one_off_interval_has_its_first_fire_time(beat: SteppedBeat) -> None:
    one = monitor("one", interval_ms=2_000, jitter_s=0, one_off=True, args="[1]")
    begun_ms = beat.clock.wall_ms()
    beat.until(lambda: beat.sent(one.pk), "the run").run(10)
    (fire_ms,) = beat.sent(one.pk)
    assert begun_ms < fire_ms <= begun_ms + 6_000
    assert beat.account["removed"] == 0
    assert beat.difference == 0


def test_a_pause_delays_a_single_run_and_repeats_none(place: Place, beat: SteppedBeat, skew_ms: int) -> None:
    had = monitor("had", interval_ms=None, once_at=at(beat, 2), args="[1]")
    paused = monitor("paused", interval_ms=None, once_at=at(beat, 6), args="[1]")
    unwanted = monitor("unwanted", interval_ms=None, once_at=at(beat, -3_600), args="[1]", enabled=False)
    beat.until(lambda: Monitor.objects.get(pk=had.pk).finished_at, "the first one is done")
    Monitor.objects.update(enabled=False)
    beat.run(20)
    assert beat.sent(paused.pk) == []
    Monitor.objects.exclude(pk=unwanted.pk).update(enabled=True)
    beat.until(lambda: beat.sent(paused.pk), "the delayed run")
    beat.until(lambda: Monitor.objects.get(pk=paused.pk).finished_at, "its end is noted")
    Monitor.objects.filter(pk=paused.pk).update(enabled=False)
    beat.run(3)
    Monitor.objects.filter(pk=paused.pk).update(enabled=True, jitter_s=3, end_at=at(beat, 3_600))
    beat.run(10)
    assert beat.fires() == {had.pk: [ms(had.once_at)], paused.pk: [ms(paused.once_at)]}
    following = again(beat, place, skew_ms).run(10)
    assert following.fires() == {}
    following.close()


def test_an_edit_while_the_run_is_on_its_way_repeats_nothing(place: Place, beat: SteppedBeat, skew_ms: int) -> None:
    """The edit makes another definition, which the database would take for one that has not run."""
    once = monitor("once", interval_ms=None, once_at=at(beat, 3), args="[1]")
    beat.broker.slow = True
    beat.until(lambda: beat.publisher.health().in_flight or beat.sent(once.pk), "the run is on its way")
    Monitor.objects.update(end_at=at(beat, 3_600))
    beat.broker.slow = False
    beat.until(lambda: Monitor.objects.get().finished_at, "its end is noted for the newer definition")
    beat.run(5)
    assert beat.sent(once.pk) == [ms(once.once_at)]
    following = again(beat, place, skew_ms).run(10)
    assert following.fires() == {}
    following.close()


def test_another_instant_is_another_run(beat: SteppedBeat) -> None:
    once = monitor("once", interval_ms=None, once_at=at(beat, 2), args="[1]")
    beat.until(lambda: Monitor.objects.get().finished_at, "the first run is done")
    earlier = once.once_at - timedelta(hours=1)
    Monitor.objects.update(once_at=earlier)
    beat.until(lambda: len(beat.sent(once.pk)) == 2, "the second run").run(5)
    assert beat.sent(once.pk) == [ms(once.once_at), ms(earlier)]
    assert beat.difference == 0


@pytest.mark.promise("missed-runs-follow-one-rule")
@pytest.mark.parametrize(("stall_s", "runs_per_advance"), [(60, 2_000_000), (60, 10), (600, 2_000_000)])
@pytest.mark.parametrize("skew_ms", [0], ids=["together"])
def test_edits_that_wait_out_a_stall_take_effect_after_the_missed_slots(
    beat: SteppedBeat, stall_s: int, runs_per_advance: int
) -> None:
    every_second = {"interval_ms": 1_000, "jitter_s": 0, "args": "[1]"}
    kept, edited, deleted = (monitor(name, **every_second) for name in ("kept", "edited", "deleted"))
    beat.until(lambda: beat.sent(kept.pk) and beat.sent(edited.pk) and beat.sent(deleted.pk), "the first runs").run(3)
    object.__setattr__(beat.engine, "config", replace(beat.engine.config, runs_per_advance=runs_per_advance))
    created = monitor("created", **every_second)
    Monitor.objects.filter(pk=edited.pk).update(interval_ms=7_000, start_at=at(beat, -3_600))
    Monitor.objects.filter(pk=deleted.pk).delete()
    before, begun_ms = beat.account, beat.engine.cursor_ms
    beat.step(stall_s * 1_000)  # the I/O thread reads the edits before the scheduling thread continues
    beat.until(lambda: beat.engine.caught_up(beat.clock.wall_ms()), "the missed slots")
    ended_ms, stall = beat.engine.cursor_ms, beat.account - before
    beat.run(15)
    missed = list(range(begun_ms + 1_000, ended_ms + 1_000, 1_000))
    replayed = stall_s == 60
    assert stall["expected"] == 3 * len(missed), "no run of the created monitor is among them"
    assert beat.sent(created.pk)[0] == ended_ms + 1_000
    assert [fire_ms in beat.sent(kept.pk) for fire_ms in missed] == [replayed] * len(missed)
    assert [fire_ms in beat.sent(edited.pk) for fire_ms in missed] == [replayed] * len(missed)
    later = [fire_ms for fire_ms in beat.sent(edited.pk) if fire_ms > ended_ms]
    assert {second - first for first, second in itertools.pairwise(later)} == {7_000}
    sent = [fire_ms for fire_ms in beat.sent(deleted.pk) if fire_ms > begun_ms]
    assert set(sent) <= set(missed)
    assert not sent or runs_per_advance == 10, "a replay of several ticks sends runs before it ends"
    assert len(sent) + beat.account["removed"] == (len(missed) if replayed else 0)
    assert beat.account["stall"] == (0 if replayed else 3 * len(missed))
    assert beat.difference == 0
