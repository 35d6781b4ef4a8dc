"""Reports of the beats, read from their status rows. An unreadable status document counts as empty."""

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


SILENCE_MAX = timedelta(seconds=10)
"""Beats report every 2 s; after five missed reports in a row a beat counts as silent."""


class Load(NamedTuple):
    """Runs due: per second for the next hour, per minute for the next day."""

    begin: datetime
    seconds: Sequence[int]
    minutes: Sequence[int]


class BeatReport(NamedTuple):
    """One status row."""

    row: Beat
    age: timedelta
    """By the database's clock."""
    status: Mapping[str, Any]
    """The status document; empty if it cannot be read."""

    @property
    def stopped(self) -> bool:
        """Whether the beat reported an orderly stop."""
        return self.status.get("state") == "stopped"

    @property
    def silent(self) -> bool:
        """Whether the beat has stopped reporting without an orderly stop."""
        return self.age > SILENCE_MAX and not self.stopped

    @property
    def alive(self) -> bool:
        """Whether the beat is reporting."""
        return not self.stopped and not self.silent

    @property
    def uptime(self) -> timedelta:
        """From its start to its last report."""
        return self.row.seen_at - self.row.started_at

    @property
    def celery_lane_jobs(self) -> int:
        """Number of jobs on the celery lane."""
        return sum((self.status.get("lanes") or {}).get("celery", {}).values())

    @property
    def entries_left_out(self) -> int:
        """Number of ``beat_schedule`` entries that the document does not list."""
        jobs = self.status.get("jobs") or {}
        return max(0, jobs.get("entries", 0) - len(self.status.get("schedule") or ()))

    @property
    def load(self) -> Load | None:
        """The forecast of due runs; None before the first survey."""
        load = self.status.get("load")
        if not load:
            return None
        begin = datetime.fromtimestamp(load["from_s"], UTC)
        return Load(begin, *(tuple(map(int, load[unit].split())) for unit in ("seconds", "minutes")))


def beat_reports() -> list[BeatReport]:
    """Return the BEATS_SHOWN beats that reported last, the latest first; one query."""
    database_now = ExpressionWrapper(UtcNow(), output_field=InstantField())
    rows = Beat.objects.order_by("-seen_at").annotate(database_now=database_now)[:BEATS_SHOWN]
    return [BeatReport(row, max(row.database_now - row.seen_at, timedelta()), _document(row.status)) for row in rows]


def _document(text: str) -> Mapping[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


class Silence(NamedTuple):
    """No beat has reported since ``since``; None = no beat has ever reported."""

    since: datetime | None


def beat_silence() -> Silence | None:
    """Return since when every beat has been silent, or None while any beat reports.

    One query of a table with one row per beat. Compares with the database's clock, which also stamps the rows.
    """
    database_now = ExpressionWrapper(UtcNow(), output_field=InstantField())
    reports = Beat.objects.order_by("-seen_at").values_list("seen_at", database_now)
    for seen_at, now in reports[:1]:
        return None if now - seen_at <= SILENCE_MAX else Silence(seen_at)
    return Silence(None)
