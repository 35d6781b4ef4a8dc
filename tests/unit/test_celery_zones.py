"""Crontabs in every zone that a Celery app may carry: where the zone has no IANA name they still follow the zone."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from zoneinfo import TZPATH, ZoneInfo

import celery
import pytest
from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import crontab, schedule
from celery.utils.time import LocalTimezone
from dateutil import tz

from celery_wheelbeat.schedules import zones
from celery_wheelbeat.schedules.cron import CronTable
from celery_wheelbeat.sources.beat_schedule import celery_zones
from celery_wheelbeat.sources.beat_schedule.celery_schedules import nameless, translate
from celery_wheelbeat.sources.beat_schedule.celery_zones import timezone_of, zone_name
from celery_wheelbeat.sources.beat_schedule.entries import Entries

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_wheelbeat.jobs.definitions import DefinitionBatch

NIGHT = datetime(2031, 7, 1, tzinfo=UTC)


class Village(tzinfo):
    """Local time of one's own: ahead of UTC by 1 h 20 min, and no summer time."""

    def utcoffset(self, when: datetime | None) -> timedelta:
        return timedelta(hours=1, minutes=20)

    def dst(self, when: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, when: datetime | None) -> str:
        return "VIL"


class Pretender(Village):
    """Says the name of a zone whose time it does not keep."""

    key = "Europe/Berlin"


class Old(tzinfo):
    """A zone as pytz has it: the name in ``zone``."""

    zone = "Asia/Kolkata"

    def utcoffset(self, when: datetime | None) -> timedelta:
        return timedelta(hours=5, minutes=30)

    dst = Village.dst
    tzname = Village.tzname


class Broken(tzinfo):
    """Raises whatever it is asked for."""

    @property
    def key(self) -> str:
        raise RuntimeError("no key")

    def utcoffset(self, when: datetime | None) -> timedelta:
        raise RuntimeError("no offset")

    dst = tzname = utcoffset


class Timeless(Village):
    """Knows no offset."""

    def utcoffset(self, when: datetime | None) -> None:  # type: ignore[override]
        return None


def from_file(name: str, key: str | None = None) -> ZoneInfo:
    for folder in TZPATH:
        try:
            with open(f"{folder}/{name}", "rb") as file:
                return ZoneInfo.from_file(file, key)
        except OSError:
            continue
    pytest.skip("this system has no files of zones")


NAMED: list[tuple[Callable[[], tzinfo | str | None], str | None]] = [
    (lambda: "Asia/Tokyo", "Asia/Tokyo"),
    (lambda: None, None),
    (lambda: UTC, "UTC"),
    (lambda: timezone(timedelta(0), "Zulu"), "UTC"),
    (lambda: tz.UTC, "UTC"),
    (lambda: tz.tzoffset("X", 0), "UTC"),
    (lambda: ZoneInfo("Europe/Berlin"), "Europe/Berlin"),
    (lambda: ZoneInfo.no_cache("Europe/Berlin"), "Europe/Berlin"),
    (lambda: from_file("America/New_York", "America/New_York"), "America/New_York"),
    (Old, "Asia/Kolkata"),
]
NAMELESS: list[Callable[[], tzinfo]] = [
    lambda: timezone(timedelta(hours=5, minutes=30)),
    lambda: timezone(timedelta(hours=2), "Europe/Berlin"),
    lambda: tz.gettz("America/New_York"),
    lambda: tz.gettz("Asia/Tokyo"),
    lambda: tz.tzoffset("X", 7_200),
    lambda: from_file("America/New_York"),
    lambda: from_file("America/New_York", "local"),
    lambda: from_file("America/New_York", "America/Chicago"),
    Village,
    Pretender,
]


@pytest.mark.parametrize(("made", "name"), NAMED)
def test_zones_with_a_name(made: Callable[[], tzinfo | str | None], name: str | None) -> None:
    assert zone_name(made()) == name


@pytest.mark.parametrize("made", [*NAMELESS, Broken, Timeless])
def test_zones_without_a_name_have_none(made: Callable[[], tzinfo]) -> None:
    zone = made()
    assert zone_name(zone) is None
    assert zone_name(zone) is None, "the answer that is kept"


def test_names_that_mean_another_thing_elsewhere_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(celery_zones, "names", lambda: zones.names() - {"Asia/Tokyo"})
    monkeypatch.setattr(celery_zones, "_answers", {})
    assert zone_name(ZoneInfo("Asia/Tokyo")) is None


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("Asia/Kolkata", "Asia/Kolkata"),
        (":Asia/Kolkata", "Asia/Kolkata"),
        ("", "UTC"),
        ("JST-9", None),
        ("<+05>-5", None),
        ("EST5EDT4,M3.2.0,M11.1.0", None),
        ("Asia/Nowhere", "UTC"),
    ],
)
def test_the_zone_of_the_machine(variable: str, name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The C library takes what it cannot read as UTC."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", variable)
        time.tzset()
        assert zone_name(LocalTimezone()) == name
    time.tzset()


def test_the_zone_of_the_machine_is_where_etc_localtime_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "JST-9")
        time.tzset()
        tokyo = LocalTimezone()
        patched.delenv("TZ")
        for path, name in (
            ("/usr/share/zoneinfo/Asia/Tokyo", "Asia/Tokyo"),
            ("/var/db/timezone/zoneinfo/Asia/Tokyo", "Asia/Tokyo"),
            ("/usr/share/zoneinfo/Europe/Berlin", None),
            ("/etc/localtime", None),
        ):
            celery_zones._answers.clear()
            patched.setattr("os.path.realpath", lambda _path, found=path: found)
            assert zone_name(tokyo) == name, path
    time.tzset()


def test_few_answers_are_kept() -> None:
    kept = [timezone(timedelta(minutes=minutes)) for minutes in range(1, 40)] * 3
    for zone in kept:
        zone_name(zone)
        assert len(celery_zones._answers) <= celery_zones._KEPT


def app_in(zone: tzinfo | str) -> Celery:
    app = Celery("shop", set_as_current=False)
    app.conf.timezone = zone
    return app


def compiled(app: Celery, when: Any) -> tuple[DefinitionBatch, CronTable]:
    crons = CronTable()
    entries = Entries(timezone_of(app), crons)
    entry = ScheduleEntry(name="e", task="t", schedule=when, app=app)
    batch = entries.changes({"e": entry}, 0).upserts
    assert entries.refused == {}
    return batch, crons


@pytest.mark.parametrize("made", [made for made, name in NAMED if name] + NAMELESS)
@pytest.mark.parametrize("own", [False, True], ids=["of the app", "of the crontab"])
def test_a_crontab_fires_at_the_wall_time_of_its_zone(
    made: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, *, own: bool
) -> None:
    zone = made()
    app = app_in("Pacific/Apia" if own else zone)
    when = crontab(30, 9, app=app)
    if own:
        when.tz = ZoneInfo(zone) if isinstance(zone, str) else zone
    batch, crons = compiled(app, when)
    clock = NIGHT
    if batch.polled:
        if own and celery.VERSION < (5, 7):
            pytest.skip("this Celery asks the zone of the app, whatever the zone of the crontab")
        (asked,) = batch.polled.values()
        monkeypatch.setattr(app, "now", lambda: clock.astimezone(app.timezone))
        fire_ms = None
        while fire_ms is None:
            assert clock < NIGHT + timedelta(days=2)
            now_ms = round(clock.timestamp() * 1000)
            fire_ms, again_ms = asked.ask(now_ms)
            clock += timedelta(milliseconds=again_ms - now_ms)
    else:
        fire_ms = crons.next_fire(int(batch.cron_index[0]), round(NIGHT.timestamp() * 1000))
    assert fire_ms is not None
    local = datetime.fromtimestamp(fire_ms / 1000, UTC).astimezone(ZoneInfo(zone) if isinstance(zone, str) else zone)
    assert (local.hour, local.minute, local.second) == (9, 30, 0)


@pytest.mark.parametrize("made", NAMELESS)
def test_a_relative_interval_without_a_name_for_its_zone_is_asked(made: Callable[[], tzinfo]) -> None:
    app = app_in(made())
    assert compiled(app, schedule(timedelta(days=1), relative=True, app=app))[0].polled
    assert not compiled(app, schedule(timedelta(days=1), app=app))[0].polled


def test_new_monitors_get_a_zone_with_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from django_wheelbeat.monitors.columns import default_timezone

    for chosen, expected in (("Asia/Tokyo", "Asia/Tokyo"), (ZoneInfo("Asia/Tokyo"), "Asia/Tokyo"), (Village(), "UTC")):
        stub = SimpleNamespace(CELERY_TIMEZONE=chosen, TIME_ZONE="UTC")
        monkeypatch.setattr("django_wheelbeat.monitors.columns.settings", stub)
        assert default_timezone() == expected


def test_why_a_schedule_is_asked() -> None:
    class Own(crontab):
        def is_due(self, last_run_at: datetime) -> Any:
            return super().is_due(last_run_at)

    assert nameless(crontab(30, 9), None)
    assert nameless(schedule(timedelta(days=1), relative=True), None)
    assert not nameless(Own(30, 9), None)
    assert not nameless(schedule(timedelta(days=5), relative=True), None)
    assert not nameless(crontab(30, 9), "UTC")
    assert translate(crontab(30, 9), timezone=None) is None
