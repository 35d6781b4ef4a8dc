"""Whether a beat is alive, as far as the database knows: reads the status rows only."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import Max
from django.utils import timezone

from django_wheelbeat.models import Beat

SILENCE_MAX = timedelta(seconds=10)
"""A beat reports every 2 s; five reports missing in a row are no coincidence."""


class Silence(NamedTuple):
    """No beat has reported since ``since``; None = no beat has ever reported."""

    since: datetime | None


def beat_silence(now: datetime | None = None) -> Silence | None:
    """Return how long all beats have been silent, or None while one reports; one query on an indexed column."""
    newest = Beat.objects.aggregate(newest=Max("seen_at"))["newest"]
    if newest is not None and (now or timezone.now()) - newest <= SILENCE_MAX:
        return None
    return Silence(newest)
