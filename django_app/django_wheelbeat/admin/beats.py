"""What the beats say about themselves, read from their status rows. A row without a readable document is no error."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db.models import ExpressionWrapper

from django_wheelbeat.models import Beat
from django_wheelbeat.monitors.columns import InstantField, UtcNow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BEATS_SHOWN = 10


class Load(NamedTuple):
    """Runs ahead, by second of an hour and by minute of a day."""

    begin: datetime
    seconds: Sequence[int]
    minutes: Sequence[int]


class BeatReport(NamedTuple):
    """One beat as its row has it."""

    row: Beat
    age: timedelta
    """By the database's clock."""
    status: Mapping[str, Any]
    """The status document; empty where there is none."""

    @property
    def stopped(self) -> bool:
        """Whether it said good-bye."""
        return self.status.get("state") == "stopped"

    @property
    def silent(self) -> bool:
        """Whether it should report and does not."""
        return self.age > SILENCE_MAX and not self.stopped

    @property
    def alive(self) -> bool:
        """Whether it reports."""
        return not self.stopped and not self.silent

    @property
    def uptime(self) -> timedelta:
        """From its start to its last report."""
        return self.row.seen_at - self.row.started_at

    @property
    def celery_lane_jobs(self) -> int:
        """How many jobs take the celery lane."""
        return sum((self.status.get("lanes") or {}).get("celery", {}).values())

    @property
    def entries_left_out(self) -> int:
        """How many entries of ``beat_schedule`` there are that the document does not show."""
        jobs = self.status.get("jobs") or {}
        return max(0, jobs.get("entries", 0) - len(self.status.get("schedule") or ()))

    @property
    def load(self) -> Load | None:
        """The load ahead; None before the first survey."""
        load = self.status.get("load")
        if not load:
            return None
        begin = datetime.fromtimestamp(load["from_s"], UTC)
        return Load(begin, *(tuple(map(int, load[unit].split())) for unit in ("seconds", "minutes")))


def beat_reports() -> list[BeatReport]:
    """Return the beats that reported last, the latest first; one query."""
    database_now = ExpressionWrapper(UtcNow(), output_field=InstantField())
    rows = Beat.objects.order_by("-seen_at").annotate(database_now=database_now)[:BEATS_SHOWN]
    return [BeatReport(row, max(row.database_now - row.seen_at, timedelta()), _document(row.status)) for row in rows]


def _document(text: str) -> Mapping[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


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
