"""Both schedulers side by side: django-celery-beat's own entries decide run by run, on an imagined clock.

Where they do not agree, the how-to gives the reason; each of those cases is here as well.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from support.site.databases import rolled_back

from celery_wheelbeat.errors import InvalidMonitor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery import Celery

pytestmark = pytest.mark.django_celery_beat

NOW = datetime(2026, 11, 30, 12, 0, 7, tzinfo=UTC)
LAST = datetime(2026, 11, 30, 11, 53, 21, 345_000, tzinfo=UTC)
CHANGED = NOW - timedelta(minutes=3)
SPRING = datetime(2026, 3, 28, 12, 0, 7, tzinfo=UTC)
AUTUMN = datetime(2026, 10, 24, 12, 0, 7, tzinfo=UTC)


class Sides:
    """Makes tasks in both, and asks each side when it fires after ``now``."""

    def __init__(self, dcb: Any, app: Celery) -> None:
        self.dcb, self.app = dcb, app
        self.notes: list[str] = []

    def cron(self, minute: str = "0", **fields: str) -> dict[str, Any]:
        return {"crontab": self.dcb.CrontabSchedule.objects.create(minute=minute, **fields)}

    def every(self, count: int, period: str = "minutes") -> dict[str, Any]:
        return {"interval": self.dcb.IntervalSchedule.objects.create(every=count, period=period)}

    def sun(self, event: str) -> dict[str, Any]:
        return {"solar": self.dcb.SolarSchedule.objects.create(event=event, latitude="52.5", longitude="13.4")}

    def clock(self, at: datetime) -> dict[str, Any]:
        return {"clocked": self.dcb.ClockedSchedule.objects.create(clocked_time=at), "one_off": True}

    def fires(self, now: datetime, count: int, **fields: Any) -> tuple[list[datetime], list[datetime]]:
        """Return our and their next ``count`` fires of one task."""
        task = self.dcb.PeriodicTask.objects.create(name="x", task="t", **fields)
        self.dcb.PeriodicTask.objects.update(date_changed=fields.get("date_changed", CHANGED))
        task.refresh_from_db()
        found = self.ours(task, now, count), self.theirs(task, now, count)
        task.delete()
        return found

    def ours(self, task: Any, now: datetime, count: int) -> list[datetime]:
        from django_wheelbeat.admin.preview import next_fire_ms
        from django_wheelbeat.models import Monitor
        from django_wheelbeat.monitors.rows import row_of, to_datetime, to_ms
        from django_wheelbeat.monitors.settings import beat_settings
        from django_wheelbeat.transfer.celery_beat import record_of
        from django_wheelbeat.transfer.records import columns_of

        self.notes.clear()
        record = record_of(task, lambda _name, text: self.notes.append(text), now)
        row, found = row_of(Monitor(pk=5, **columns_of(record))), []
        after = to_ms(now)
        while len(found) < count:
            after = next_fire_ms(row, after, beat_settings())
            if after is None:
                break
            found.append(to_datetime(after))
        return found

    def theirs(self, task: Any, now: datetime, count: int) -> list[datetime]:
        from django_celery_beat.schedulers import ModelEntry
        from django_celery_beat.utils import NEVER_CHECK_TIMEOUT

        entry, at, found = ModelEntry(task, app=self.app), now, []
        while len(found) < count:
            entry.app = self.app
            entry.schedule.nowfun = lambda at=at: at
            entry._default_now = lambda at=at: at
            is_due, wait_s = entry.is_due()
            if is_due:
                found.append(at)
                entry = next(entry)
            elif wait_s == NEVER_CHECK_TIMEOUT:
                break
            else:
                at += timedelta(seconds=wait_s)
        return found


@pytest.fixture
def sides(sqlite_with_dcb: Any, site_app: Celery) -> Iterator[Sides]:
    """Both schedulers; what they decide has nothing to do with the vendor."""
    with rolled_back(sqlite_with_dcb):
        from django_celery_beat import models

        yield Sides(models, site_app)


ALIKE: dict[str, Callable[[Sides], tuple[datetime, dict[str, Any]]]] = {
    "nightly": lambda s: (NOW, s.cron("30", hour="2", timezone="Europe/Berlin")),
    "both day fields": lambda s: (NOW, s.cron(hour="0", day_of_month="1-15", day_of_week="mon,fri")),
    "blanks": lambda s: (NOW, s.cron("0, 15 ,30", hour="*/4", timezone="Asia/Tokyo")),
    "sunday is 0": lambda s: (NOW, s.cron("5", hour="5", day_of_week="0")),
    "quarterly": lambda s: (NOW, s.cron(hour="12", day_of_month="1", month_of_year="*/3")),
    "wrapping": lambda s: (NOW, s.cron(hour="22-2")),
    "leap days": lambda s: (NOW, s.cron(hour="0", day_of_month="29", month_of_year="2")),
    "cron, starts later": lambda s: (NOW, s.cron(hour="*/2") | {"start_time": NOW + timedelta(hours=5, minutes=17)}),
    "spring, beside the gap": lambda s: (SPRING, s.cron(hour="3", timezone="Europe/Berlin")),
    "spring, hourly": lambda s: (SPRING, s.cron(timezone="Europe/Berlin")),
    "spring, half hours": lambda s: (SPRING, s.cron("*/30", hour="1-3", timezone="Europe/Berlin")),
    "autumn, once a night": lambda s: (AUTUMN, s.cron("30", hour="2", timezone="Europe/Berlin")),
    "autumn, after the hour": lambda s: (AUTUMN, s.cron(hour="3", timezone="Europe/Berlin")),
    "ten minutes": lambda s: (NOW, s.every(10)),
    "a week": lambda s: (NOW, s.every(7, "days")),
    "half a second": lambda s: (LAST, s.every(500_000, "microseconds")),
    "interval, starts later": lambda s: (NOW, s.every(1, "hours") | {"start_time": NOW + timedelta(hours=5)}),
    "interval, ends": lambda s: (NOW, s.every(10) | {"expires": NOW + timedelta(minutes=35)}),
    "clocked": lambda s: (NOW, s.clock(NOW + timedelta(hours=3)) | {"last_run_at": None}),
    "never ran, interval": lambda s: (NOW, s.every(10) | {"last_run_at": None}),
    "never ran, starts later": lambda s: (
        NOW, s.every(10) | {"last_run_at": None, "start_time": NOW + timedelta(hours=1)}
    ),
    "never ran, cron": lambda s: (NOW, s.cron(hour="*/2", timezone="Asia/Tokyo") | {"last_run_at": None}),
    "never ran, cron starts later": lambda s: (
        NOW, s.cron(hour="*/2") | {"last_run_at": None, "start_time": NOW + timedelta(minutes=17)}
    ),
}  # fmt: skip


SINCE_57 = {"blanks", "spring, half hours"}
"""Celery before 5.7 leaves out minutes of a crontab's hour, for it compares the hours of UTC with those of the zone."""


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.celery57) if case in SINCE_57 else case for case in ALIKE]
)
def test_they_fire_at_the_same_instants(sides: Sides, case: str) -> None:
    now, fields = ALIKE[case](sides)
    ours, theirs = sides.fires(now, 10, **{"last_run_at": min(now, LAST), **fields})
    assert ours
    assert ours == theirs


def test_never_run_tasks_do_not_all_fire_together(sides: Sides) -> None:
    """Each counts from its own last change, there as here."""
    firsts = set()
    for minutes in range(1, 10):
        sides.dcb.IntervalSchedule.objects.all().delete()
        changed = NOW - timedelta(minutes=minutes)
        ours, theirs = sides.fires(NOW, 1, date_changed=changed, **sides.every(10))
        assert ours == theirs == [changed + timedelta(minutes=10)]
        firsts.add(ours[0])
    assert len(firsts) == 9
    assert sides.notes == ["has never run: its interval counts from its last change, as in django-celery-beat"]


def test_a_local_time_that_a_clock_change_skips(sides: Sides) -> None:
    """There an hour after the gap began and half an hour more; here when the gap ends."""
    ours, theirs = sides.fires(SPRING, 3, last_run_at=SPRING, **sides.cron("30", hour="2", timezone="Europe/Berlin"))
    assert (ours[0], theirs[0]) == (datetime(2026, 3, 29, 1, 0, tzinfo=UTC), datetime(2026, 3, 29, 1, 30, tzinfo=UTC))
    assert ours[1:] == theirs[1:]


@pytest.mark.parametrize(
    ("minute", "hour", "late"),
    [("*/20", "2", 1), ("23", "*/2", 1), pytest.param("*/20", "1-3", 0, marks=pytest.mark.celery57)],
)
def test_slots_of_a_star_that_a_clock_change_skips(sides: Sides, minute: str, hour: str, late: int) -> None:
    """There the first comes after the gap, an hour late; here such a task follows the clock on the wall."""
    cron = sides.cron(minute, hour=hour, timezone="Europe/Berlin")
    ours, theirs = sides.fires(SPRING, 20, last_run_at=SPRING, **cron)
    night = datetime(2026, 3, 29, 1, 0, tzinfo=UTC)
    extra = sorted(fire for fire in set(theirs) - set(ours) if fire <= ours[-1])
    assert len(extra) == late
    assert all(night <= fire < night + timedelta(hours=1) for fire in extra)
    assert ours[: 20 - late] == sorted(set(theirs) - set(extra))[: 20 - late]


def test_an_hour_that_a_clock_change_repeats(sides: Sides) -> None:
    """There an hourly task is silent for two hours; here it runs in both."""
    ours, theirs = sides.fires(AUTUMN, 20, last_run_at=AUTUMN, **sides.cron(timezone="Europe/Berlin"))
    assert set(ours) - set(theirs) == {datetime(2026, 10, 25, 1, 0, tzinfo=UTC)}
    assert ours == sorted({*ours, *theirs})[:20]


@pytest.mark.parametrize("event", ["sunset", "dawn_civil", "solar_noon"])
def test_the_sun_is_rounded_to_the_second(sides: Sides, event: str) -> None:
    ours, theirs = sides.fires(NOW, 5, last_run_at=NOW, **sides.sun(event))
    assert len(ours) == len(theirs) == 5
    assert all(abs(mine - other) <= timedelta(seconds=0.6) for mine, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    ("last", "changed", "start"),
    [
        (NOW - timedelta(minutes=25), CHANGED, None),
        (None, NOW - timedelta(days=1, minutes=3), None),
        (None, CHANGED, NOW - timedelta(minutes=12)),
    ],
    ids=["overdue", "never ran for a day", "never ran since its start"],
)
def test_what_is_overdue_keeps_its_second_instead_of_running_at_once(
    sides: Sides, last: datetime | None, changed: datetime, start: datetime | None
) -> None:
    fields = {"last_run_at": last, "date_changed": changed, "start_time": start, **sides.every(10)}
    ours, theirs = sides.fires(NOW, 3, **fields)
    assert theirs == [NOW, NOW + timedelta(minutes=10), NOW + timedelta(minutes=20)]
    grid = start or (last or changed)
    assert all((at - grid) % timedelta(minutes=10) == timedelta(0) for at in ours)
    assert NOW < ours[0] <= NOW + timedelta(minutes=10)


def test_a_clocked_time_that_has_passed_does_not_run_and_a_note_says_so(sides: Sides) -> None:
    ours, theirs = sides.fires(NOW, 1, last_run_at=None, **sides.clock(NOW - timedelta(hours=3)))
    assert (ours, theirs) == ([], [NOW])
    assert sides.notes == ["its clocked time has passed without a run: it will not run unless you run it by hand"]


def test_without_aware_zones_the_zone_of_the_app_counts(sides: Sides) -> None:
    from django.test import override_settings

    tokyo = sides.cron("30", hour="5", timezone="Asia/Tokyo")
    with override_settings(DJANGO_CELERY_BEAT_TZ_AWARE=False):
        ours, theirs = sides.fires(NOW, 10, last_run_at=LAST, **tokyo)
        assert ours == theirs
        assert ours[0].hour == 4, "half past five in Berlin, the zone of the app"
        assert "gets the zone Europe/Berlin" in sides.notes[0]
    ours, theirs = sides.fires(NOW, 10, last_run_at=LAST, **tokyo)
    assert ours == theirs
    assert (ours[0].hour, sides.notes) == (20, [])


def test_without_aware_zones_the_zone_of_the_app_must_have_a_name(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.test import override_settings

    from django_wheelbeat.transfer.celery_beat import record_of

    task = sides.dcb.PeriodicTask(name="x", task="t", **sides.cron("30", hour="5", timezone="Asia/Tokyo"))
    monkeypatch.setattr(sides.app, "timezone", timezone(timedelta(hours=2)))
    assert record_of(task, lambda *_: None, NOW)["timezone"] == "Asia/Tokyo"
    with (
        override_settings(DJANGO_CELERY_BEAT_TZ_AWARE=False),
        pytest.raises(InvalidMonitor, match="not an IANA zone"),
    ):
        record_of(task, lambda *_: None, NOW)


def test_naive_instants_are_utc(sides: Sides) -> None:
    """``USE_TZ = False``: its scheduler writes and reads UTC, whatever ``TIME_ZONE`` says."""
    from django.test import override_settings

    from django_wheelbeat.transfer.celery_beat import record_of

    task = sides.dcb.PeriodicTask(name="x", task="t", last_run_at=LAST.replace(tzinfo=None), **sides.every(10))
    with override_settings(TIME_ZONE="Asia/Tokyo"):
        record = record_of(task, lambda *_: None, NOW)
    assert record["start_at"] == (LAST + timedelta(minutes=10)).isoformat(timespec="microseconds")
