"""Two beats by mistake: each names the other in its log. A restart that overlaps for a moment is not logged."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from django.utils import timezone
from support.beat.stepped import SteppedBeat

from celery_wheelbeat.sources.changelog.neighbours import LOOK_EVERY_S
from django_wheelbeat.models import Beat

if TYPE_CHECKING:
    import pytest
    from support.changelog.places import Place

START_MS = 1_800_000_000_000


def reports(beat_id: str, *, ago_s: float = 0, namespace: str = "stepped") -> None:
    """Store the report of another beat."""
    seen_at = timezone.now() - timedelta(seconds=ago_s)
    Beat.objects.filter(beat_id=beat_id).delete()
    Beat.objects.create(
        beat_id=beat_id, namespace=namespace, host=f"host of {beat_id}", pid=7, version="1", started_at=seen_at,
        seen_at=seen_at,
    )  # fmt: skip


def named(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "Another beat" in record.getMessage()]


def test_a_beat_that_goes_on_beside_this_one_is_named_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="celery.beat")
    reports("ended", ago_s=11)
    reports("of another installation", namespace="other")
    reports("restarted")
    beat = SteppedBeat(place.open(), start_ms=START_MS).until(lambda: Beat.objects.count() == 4, "its own report")
    reports("restarted", ago_s=11)
    reports("beside")
    beat.run(LOOK_EVERY_S)
    assert named(caplog) == []
    for _ in range(2):
        reports("beside")
        beat.run(LOOK_EVERY_S)
    (line,) = named(caplog)
    assert "pid 7 on host of beside" in line
    beat.close()
