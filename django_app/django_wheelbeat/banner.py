"""Whether a beat is alive, as far as the database knows: reads the status rows only."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import ExpressionWrapper

from django_wheelbeat.instant_field import InstantField, UtcNow
from django_wheelbeat.models import Beat

SILENCE_MAX = timedelta(seconds=10)
"""A beat reports every 2 s; five reports missing in a row are no coincidence."""


class Silence(NamedTuple):
    """No beat has reported since ``since``; None = no beat has ever reported."""

    since: datetime | None


def beat_silence() -> Silence | None:
    """Return how long all beats have been silent, or None while one reports.

    One query of a table with a row per beat. The database's clock decides: beats stamp their rows with it.
    """
    database_now = ExpressionWrapper(UtcNow(), output_field=InstantField())
    reports = Beat.objects.order_by("-seen_at").values_list("seen_at", database_now)
    for seen_at, now in reports[:1]:
        return None if now - seen_at <= SILENCE_MAX else Silence(seen_at)
    return Silence(None)
