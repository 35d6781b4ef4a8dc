"""Which of the stored marks a start goes by, after prunes and under clocks that were wrong for a while."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import pytest
from django.core.management import call_command
from django.utils import timezone
from support.beat.stepped import SteppedBeat
from support.changelog.places import monitor

from celery_wheelbeat.beat.marks import MarkDocument
from celery_wheelbeat.engine.sharing.shard_marks import UNKNOWN_MS, ShardMarks
from django_wheelbeat.models import Beat

if TYPE_CHECKING:
    from support.changelog.places import Place

DAY_S = 86_400
SKEW_S = 8 * DAY_S
"""How far the beats' clocks are ahead of the database's, so that a monitor made now is eight days old to them."""


def ended(beat_id: str, *, ago_s: float, ahead_s: float = 0, namespace: str = "stepped") -> None:
    """Store the row of a beat that ended ``ago_s`` seconds ago under a clock that was ``ahead_s`` fast."""
    seen_at = timezone.now() - timedelta(seconds=ago_s)
    mark = MarkDocument(round((seen_at.timestamp() + SKEW_S + ahead_s) * 1000))
    Beat.objects.create(
        beat_id=beat_id,
        namespace=namespace,
        host="h",
        pid=1,
        version="1",
        started_at=seen_at,
        seen_at=seen_at,
        marks=json.dumps({"broker": mark.to_json()}),
    )


def test_a_prune_keeps_the_mark_of_every_namespace(place: Place) -> None:
    """Two installations share a database; one of them is stopped for a month."""
    for number, ago_s in enumerate((31 * DAY_S, 30 * DAY_S)):
        ended(f"stopped {number}", ago_s=ago_s)
    for number, ago_s in enumerate((30 * DAY_S, 0)):
        ended(f"running {number}", ago_s=ago_s, namespace="other")
    call_command("wheelbeat_prune", verbosity=0)
    assert sorted(Beat.objects.values_list("beat_id", flat=True)) == ["running 1", "stopped 1"]
    database = place.open()
    ((document,),) = database.store.marks("stepped").values()
    assert document["age_s"] == pytest.approx(30 * DAY_S, abs=600)
    database.source.close()


def test_a_prune_keeps_every_row_that_has_the_latest_mark_of_a_shard(place: Place) -> None:
    """Two beats had half of the shards each and were stopped; a third one ran before them."""
    for beat_id, ago_s, has in (("before", 40, 0b1111), ("first half", 30, 0b0011), ("second half", 20, 0b1100)):
        ended(beat_id, ago_s=ago_s * DAY_S)
        row = Beat.objects.get(beat_id=beat_id)
        document = json.loads(row.marks)["broker"]
        where = np.array([has >> shard & 1 for shard in range(4)], np.bool_)
        document["shards"] = ShardMarks(np.where(where, document["mark_ms"], UNKNOWN_MS)).encoded()
        Beat.objects.filter(pk=row.pk).update(
            marks=json.dumps({"broker": document}), seen_at=row.seen_at + timedelta(seconds=SKEW_S)
        )
    call_command("wheelbeat_prune", verbosity=0)
    assert sorted(Beat.objects.values_list("beat_id", flat=True)) == ["first half", "second half"]


@pytest.mark.parametrize("beside_s", [None, 100], ids=["one after the other", "two at once"])
def test_a_clock_that_was_fast_repeats_nothing_of_the_week_before(place: Place, beside_s: int | None) -> None:
    """The second beat ran for a week and ended under a clock an hour fast; what it has sent is not sent again."""
    every = monitor("every", interval_ms=60_000, misfire="all", args="[1]")
    ended("first", ago_s=7 * DAY_S)
    ended("second", ago_s=90, ahead_s=3_600)
    if beside_s is not None:
        ended("by mistake at the same time", ago_s=beside_s)
    begun_ms = time.time_ns() // 1_000_000 + SKEW_S * 1_000
    beat = SteppedBeat(place.open(), start_ms=begun_ms)
    beat.until(lambda: max(beat.sent(every.pk), default=0) > begun_ms, "a run on time").run(10)
    missed = [fire_ms for fire_ms in beat.sent(every.pk) if fire_ms <= begun_ms]
    assert len(missed) in ({0} if beside_s is None else {1, 2})
    assert all(fire_ms > begun_ms - 100_000 for fire_ms in missed)
    assert beat.account["restart"] == 0
    assert beat.difference == 0
    beat.close()
