"""Celery's schedule objects: translated where they are pure, asked the way Celery asks where they are not."""

from __future__ import annotations

import itertools
import sys
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule, solar

from celery_wheelbeat import Cron, Interval, InvalidSchedule
from celery_wheelbeat.schedules.kinds import NEVER_MS, Asked
from celery_wheelbeat.schedules.solar import EVENTS, SolarSchedule
from celery_wheelbeat.schedules.zones import LATEST_S
from celery_wheelbeat.sources.beat_schedule.celery_schedules import CustomSchedule, polled, translate
from celery_wheelbeat.sources.beat_schedule.celery_zones import zone_name

NOW_MS = 1_750_000_000_000


@pytest.fixture
def app() -> Celery:
    return Celery("shop", timezone="Europe/Berlin", set_as_current=False)


@pytest.mark.parametrize(
    ("given", "interval_ms"),
    [
        (30, 30_000),
        (0.1, 100),
        (1 / 3, 333),
        (0.0001, 1),
        (timedelta(hours=36), 129_600_000),
        (schedule(90), 90_000),
        (schedule(timedelta(seconds=5), relative=True), 5_000),
        (Fraction(1, 2), 500),
    ],
)
def test_intervals_keep_their_length(given: Any, interval_ms: int) -> None:
    assert translate(given) == Interval(interval_ms / 1000)


@pytest.mark.parametrize("given", [0, -5, timedelta(0), schedule(0), schedule(None), "30", None, object(), Decimal(3)])
def test_what_is_no_schedule_is_refused(given: Any) -> None:
    with pytest.raises(InvalidSchedule, match="expected"):
        translate(given)


@pytest.mark.parametrize(
    ("length", "expression"),
    [
        (timedelta(days=1), "0 0 * * *"),
        (timedelta(hours=6), "0 */6 * * *"),
        (timedelta(hours=1), "0 */1 * * *"),
        (timedelta(minutes=15), "*/15 * * * *"),
        (timedelta(minutes=1), "*/1 * * * *"),
    ],
)
def test_relative_intervals_follow_the_wall_clock(length: timedelta, expression: str) -> None:
    assert translate(schedule(length, relative=True), timezone="Asia/Kathmandu") == Cron(expression, "Asia/Kathmandu")


@pytest.mark.parametrize(
    "length", [timedelta(hours=7), timedelta(days=2), timedelta(minutes=90), timedelta(seconds=90)]
)
def test_relative_intervals_that_fit_no_clock_are_asked(length: timedelta) -> None:
    assert translate(schedule(length, relative=True)) is None


@pytest.mark.parametrize(
    ("given", "expression"),
    [
        (crontab(), "* * * * *"),
        (crontab("0", "4", "*"), "0 4 * * *"),
        (crontab(minute="*/15", hour="9-17", day_of_week="mon-fri"), "*/15 9-17 * * 1-5"),
        (crontab(minute=5, hour={1, 2}, day_of_month=[1, 15]), "5 1,2 1,15 * *"),
        (crontab(minute="0", hour="22-2", day_of_week="sat-mon"), "0 22-2 * * 6,0,1"),
        (crontab(0, 0, month_of_year="nov-feb"), "0 0 * 11,12,1,2 *"),
        (crontab(minute="*/90"), "*/90 * * * *"),
        (crontab(minute=range(60), hour=range(24)), "0-59 0-23 * * *"),
        (crontab(minute=30, hour="*/5"), "30 */5 * * *"),
        (crontab(minute="*/20,7", hour=3), "*/20,7 3 * * *"),
    ],
)
def test_crontabs_are_translated_without_loss(given: crontab, expression: str) -> None:
    assert translate(given, timezone="Europe/Berlin") == Cron(expression, "Europe/Berlin")


def test_both_day_fields_must_match_as_in_celery() -> None:
    cron = translate(crontab(0, 0, day_of_month=13, day_of_week="fri"))
    assert isinstance(cron, Cron)
    assert cron.next_fires(datetime(2024, 1, 1, tzinfo=UTC), 2) == [
        datetime(2024, 9, 13, tzinfo=UTC),
        datetime(2024, 12, 13, tzinfo=UTC),
    ]


def test_a_crontab_that_never_fires_is_refused() -> None:
    never = crontab(0, 0, day_of_month=30, month_of_year="1-12")
    never.month_of_year = {2}
    with pytest.raises(InvalidSchedule, match="never fires"):
        translate(never)


def test_the_zone_of_the_crontab_wins(app: Celery) -> None:
    own = crontab(0, 9, app=app)
    own.tz = ZoneInfo("Asia/Tokyo")
    assert translate(own, timezone="Europe/Berlin") == Cron("0 9 * * *", "Asia/Tokyo")
    of_app = crontab(0, 9, app=app)
    assert of_app.tz == ZoneInfo("Europe/Berlin")
    assert translate(of_app, timezone="UTC") == Cron("0 9 * * *", "Europe/Berlin")


def test_zones_without_a_name_are_asked() -> None:
    own = crontab(0, 9)
    own.tz = timezone(timedelta(hours=5, minutes=30))
    assert zone_name(own.tz) is None
    assert translate(own) is None
    assert translate(crontab(0, 9), timezone=None) is None


def test_names_of_zones(app: Celery) -> None:
    assert zone_name(app.timezone) == "Europe/Berlin"
    assert zone_name(UTC) == "UTC"
    assert zone_name("Asia/Tokyo") == "Asia/Tokyo"
    assert zone_name(None) is None
    local = Celery("local", set_as_current=False)
    local.conf.enable_utc = False
    name = zone_name(local.timezone)
    assert name is None or Cron("* * * * *", name)


class Weekdays(crontab):
    def is_due(self, last_run_at: datetime) -> Any:
        return super().is_due(last_run_at)


class Documented(crontab):
    """Changes nothing that matters."""

    def __repr__(self) -> str:
        return "documented"


class Slower(schedule):
    @property
    def seconds(self) -> float:
        return 10


def test_overridden_behaviour_is_asked_not_guessed() -> None:
    assert translate(Weekdays(0, 9)) is None
    assert translate(Slower(5)) is None
    assert translate(Documented(0, 9)) == Cron("0 9 * * *")
    patched = crontab(0, 9)
    patched.remaining_estimate = lambda _last: timedelta(1)
    assert translate(patched) is None
    assert translate(crontab(0, 9, nowfun=lambda: datetime.now(UTC))) is None
    assert translate(schedule(5, nowfun=lambda: datetime.now(UTC))) is None


class Scripted(BaseSchedule):
    """Answers from a list, and remembers what it was asked."""

    def __init__(self, answers: list[Any]) -> None:
        self.clock = datetime(2025, 6, 15, tzinfo=UTC)
        self.asked: list[datetime] = []
        self._answers = answers
        super().__init__(nowfun=lambda: self.clock)

    def is_due(self, last_run_at: datetime) -> Any:
        self.asked.append(last_run_at)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_custom_schedules_are_asked_with_their_last_run() -> None:
    scripted = Scripted([(False, 2.5), (True, 10), (False, 3), (True, 1)])
    start = scripted.clock
    custom = CustomSchedule(scripted)
    assert custom.ask(NOW_MS + 400) == Asked(None, NOW_MS + 2_900)
    scripted.clock = start + timedelta(seconds=3)
    assert custom.ask(NOW_MS + 3_400) == Asked(NOW_MS + 3_000, NOW_MS + 13_400)
    scripted.clock = start + timedelta(seconds=13)
    assert custom.ask(NOW_MS + 13_400) == Asked(None, NOW_MS + 16_400)
    assert custom.ask(NOW_MS + 16_400) == Asked(NOW_MS + 16_000, NOW_MS + 17_400)
    assert scripted.asked == [start, start, start + timedelta(seconds=3), start + timedelta(seconds=3)]


def test_a_custom_schedule_runs_at_most_once_a_second() -> None:
    custom = CustomSchedule(Scripted([(True, 0), (True, 0), (True, 0)]))
    assert custom.ask(NOW_MS + 100) == Asked(NOW_MS, NOW_MS + 101)
    assert custom.ask(NOW_MS + 101) == Asked(None, NOW_MS + 1_000)
    assert custom.ask(NOW_MS + 1_000).fire_ms == NOW_MS + 1_000


@pytest.mark.parametrize("wait", [None, "soon", float("nan"), float("inf"), 1e9])
def test_a_custom_schedule_is_asked_again_whatever_it_says(wait: Any) -> None:
    assert CustomSchedule(Scripted([(False, wait)]), recheck_s=60).ask(NOW_MS) == Asked(None, NOW_MS + 60_000)


def test_a_custom_schedule_that_raises_goes_on_from_the_same_last_run() -> None:
    scripted = Scripted([RuntimeError("database is away"), (True, 5)])
    custom = CustomSchedule(scripted)
    with pytest.raises(RuntimeError, match="database is away"):
        custom.ask(NOW_MS)
    assert custom.ask(NOW_MS + 1_000) == Asked(NOW_MS + 1_000, NOW_MS + 6_000)
    assert scripted.asked[0] == scripted.asked[1]


def test_a_crontab_with_its_own_clock_is_asked_through_celery(app: Celery) -> None:
    clock = datetime(2025, 6, 15, 8, 59, 58, tzinfo=UTC)
    own = crontab(0, 9, nowfun=lambda: clock, app=app)
    own.tz = UTC
    custom = polled(own)
    assert custom.ask(NOW_MS) == Asked(None, NOW_MS + 2_000)
    clock += timedelta(seconds=2)
    assert custom.ask(NOW_MS + 2_000).fire_ms == NOW_MS + 2_000


def test_solar_schedules_fire_at_the_event_wherever_the_search_began(app: Celery) -> None:
    for event in EVENTS:
        sun = polled(solar(event, 52.52, 13.4, app=app))
        assert isinstance(sun, SolarSchedule)
        fire_ms = sun.next_fire(NOW_MS)
        assert fire_ms is not None
        for asked_ms in (NOW_MS, (NOW_MS + fire_ms) // 2, fire_ms - 1):
            assert SolarSchedule(event, 52.52, 13.4).next_fire(asked_ms) == fire_ms
        following_ms = sun.next_fire(fire_ms)
        assert following_ms is not None
        assert abs(following_ms - fire_ms - 86_400_000) < 4 * 60_000 or event.endswith("astronomical")


def test_sunset_agrees_with_celery(app: Celery) -> None:
    start = datetime(2025, 3, 20, 12, tzinfo=UTC)
    celerys = solar("sunset", 40.7, -74.0, app=app, nowfun=lambda: start)
    expected = start + celerys.remaining_estimate(start)
    (fire,) = [SolarSchedule("sunset", 40.7, -74.0).next_fire(round(start.timestamp() * 1000))]
    assert fire is not None
    assert abs(fire / 1000 - expected.timestamp()) < 2


def test_the_polar_night_is_waited_for() -> None:
    tromso = SolarSchedule("sunrise", 69.6, 18.9)
    before_ms = round(datetime(2025, 11, 20, tzinfo=UTC).timestamp() * 1000)
    mornings = []
    for _ in range(12):
        fire_ms = tromso.next_fire(before_ms)
        assert fire_ms is not None
        assert fire_ms > before_ms
        mornings.append(datetime.fromtimestamp(fire_ms / 1000, UTC))
        before_ms = fire_ms
    night = max(later - earlier for earlier, later in itertools.pairwise(mornings))
    assert timedelta(days=40) < night < timedelta(days=60)


def test_solar_events_are_offered_one_by_one() -> None:
    noon = SolarSchedule("solar_noon", 0, 0)
    waiting = noon.ask(NOW_MS)
    assert waiting.fire_ms is None
    due = noon.ask(waiting.ask_again_ms + 2 * 86_400_000)
    assert due.fire_ms == waiting.ask_again_ms
    assert due.ask_again_ms < waiting.ask_again_ms + 2 * 86_400_000
    never = SolarSchedule("sunset", 0, 0)
    assert never.ask(LATEST_S * 1000) == Asked(None, NEVER_MS)


@pytest.mark.parametrize(
    ("event", "latitude", "longitude", "complaint"),
    [
        ("lunch", 0, 0, "solar event 'lunch': expected one of dawn_astronomical"),
        ("sunset", 91, 0, "latitude 91"),
        ("sunset", float("nan"), 0, "latitude nan"),
        ("sunset", 0, -181, "longitude -181"),
    ],
)
def test_solar_values_are_checked(event: str, latitude: float, longitude: float, complaint: str) -> None:
    with pytest.raises(InvalidSchedule, match=complaint):
        SolarSchedule(event, latitude, longitude)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ephem", None)
    with pytest.raises(InvalidSchedule, match="pip install ephem"):
        SolarSchedule("sunset", 0, 0)
