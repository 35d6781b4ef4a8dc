"""Solar events against a scan of the sun's altitude, minute by minute, and against ephem's own search."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from itertools import pairwise

import ephem
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_wheelbeat.schedules.solar import EVENTS, SolarSchedule
from celery_wheelbeat.schedules.zones import EARLIEST_S, LATEST_S

MINUTE_MS = 60_000
DAY_MS = 86_400_000
NEAR_MS = 5_000
"""The scan's altitudes are those of an eye at the place, the search's those of the earth's centre."""

SEASONS = [
    # The first and the last of a season near midnight or noon, where a day's search finds nothing.
    ("sunset", 69.65, 18.96, "2025-07-22", 6),
    ("sunset", 69.65, 18.96, "2025-05-13", 8),
    ("sunrise", 69.65, 18.96, "2025-07-22", 6),
    ("sunrise", 69.65, 18.96, "2025-05-13", 8),
    ("sunrise", 69.65, 18.96, "2025-01-12", 6),
    ("sunset", 69.65, 18.96, "2025-11-23", 8),
    ("sunset", 78.22, 15.65, "2025-08-21", 6),
    ("sunrise", 78.22, 15.65, "2025-02-13", 6),
    ("sunset", 66.0, -150.0, "2025-06-27", 6),
    ("sunrise", -69.0, 170.0, "2026-01-19", 8),
    ("dawn_civil", 60.1, 25.0, "2025-08-04", 6),
    ("dusk_nautical", 55.0, -3.0, "2025-05-18", 8),
    ("dusk_astronomical", 48.7, 180.0, "2025-06-08", 8),
    ("dusk_astronomical", 48.7, -180.0, "2025-07-01", 8),
    ("sunrise", 90.0, 0.0, "2025-03-16", 6),
    ("sunset", -89.99, 77.0, "2025-03-20", 6),
    ("sunset", 89.5, 77.0, "2025-09-18", 12),
]


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def scanned(event: str, latitude: float, longitude: float, begin_ms: int, days: int) -> list[int]:
    """Look at the sun every minute: the first minute on the other side of the horizon."""
    told = EVENTS[event]
    place = ephem.Observer()
    place.lat, place.lon, place.elevation, place.pressure = str(latitude), str(longitude), 0, 0
    horizon = float(ephem.degrees(told.horizon))
    up = []
    for minute in range(days * 1440 + 1):
        place.date = 25_567.5 + (begin_ms + minute * MINUTE_MS) / DAY_MS
        sun = ephem.Sun(place)
        up.append(sun.alt + (0 if told.centre else sun.radius) >= horizon)
    return [
        begin_ms + minute * MINUTE_MS
        for minute, (before, now) in enumerate(pairwise(up), start=1)
        if before is not told.rises and now is told.rises
    ]


def computed(event: str, latitude: float, longitude: float, begin_ms: int, end_ms: int) -> list[int]:
    sun = SolarSchedule(event, latitude, longitude)
    found: list[int] = []
    after_ms: int | None = begin_ms
    while (after_ms := sun.next_fire(after_ms)) is not None and after_ms <= end_ms:
        found.append(after_ms)
    return found


@pytest.mark.parametrize(("event", "latitude", "longitude", "begin", "days"), SEASONS)
def test_no_event_of_a_season_is_missed(event: str, latitude: float, longitude: float, begin: str, days: int) -> None:
    begin_ms = ms(begin)
    expected = scanned(event, latitude, longitude, begin_ms, days)
    found = computed(event, latitude, longitude, begin_ms, begin_ms + days * DAY_MS)
    assert expected, "a case in which nothing happens shows nothing"
    assert len(found) == len(expected)
    for fire_ms, until_ms in zip(found, expected, strict=True):
        slow = 1 if abs(latitude) < 85 else 60  # near a pole the sun takes its time to pass
        assert until_ms - (MINUTE_MS + NEAR_MS) * slow <= fire_ms <= until_ms + NEAR_MS * slow


@pytest.mark.parametrize(
    ("event", "latitude", "longitude", "after", "fire"),
    [
        ("sunset", 69.65, 18.96, "2025-06-01", "2025-07-25T22:28:32"),
        ("sunset", 78.22, 15.65, "2025-06-01", "2025-08-24T22:17:59"),
        ("sunset", 66.0, -150.0, "2025-06-30T00:00", "2025-06-30T09:51:11"),
    ],
)
def test_the_first_of_a_season(event: str, latitude: float, longitude: float, after: str, fire: str) -> None:
    found = SolarSchedule(event, latitude, longitude).next_fire(ms(after))
    assert found is not None
    assert abs(found - ms(fire)) <= 1_000


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize(("latitude", "longitude"), [(0, 0), (52.5, 13.4), (-33.9, 151.2), (64.1, -21.9), (40.7, -180)])
def test_ephems_own_search_agrees_to_the_second(event: str, latitude: float, longitude: float) -> None:
    told = EVENTS[event]
    place = ephem.Observer()
    place.lat, place.lon, place.elevation, place.pressure = str(latitude), str(longitude), 0, 0
    place.horizon = told.horizon
    for number in range(20):
        after_ms = ms("2025-01-01") + number * 17 * DAY_MS
        start = 25_567.5 + after_ms / DAY_MS
        try:
            if told.rises is None:
                expected = place.next_transit(ephem.Sun(), start=start)
            else:
                search = place.next_rising if told.rises else place.next_setting
                expected = search(ephem.Sun(), start=start, use_center=told.centre)
        except ephem.CircumpolarError:
            continue
        found = SolarSchedule(event, latitude, longitude).next_fire(after_ms)
        assert found is not None
        assert abs(found / DAY_MS + 25_567.5 - float(expected)) * 86_400 <= 1


@settings(max_examples=150)
@given(
    st.sampled_from(sorted(EVENTS)),
    st.tuples(st.floats(-90, 90), st.floats(-180, 180)),
    st.integers(EARLIEST_S, LATEST_S - 800 * 86_400),
    st.floats(0, 1),
    st.integers(0, 999),
)
def test_an_event_is_the_same_wherever_the_search_began(
    event: str, place: tuple[float, float], after_s: int, share: float, milliseconds: int
) -> None:
    sun = SolarSchedule(event, *place)
    first = sun.next_fire(after_s * 1000 + milliseconds)
    assert first is not None, "within a year the sun does everything everywhere"
    second = sun.next_fire(first)
    assert second is not None
    assert after_s * 1000 + milliseconds < first < second
    between = first + math.floor((second - 1 - first) * share)
    assert SolarSchedule(event, *place).next_fire(between) == second
    assert first % 1000 == 0


def test_the_ends_of_the_calendar() -> None:
    sun = SolarSchedule("sunset", 0, 0)
    assert sun.next_fire(-(2**62)) == sun.next_fire(EARLIEST_S * 1000)
    for after_ms in (LATEST_S * 1000, 253_402_300_799_999, 2**62):
        assert sun.next_fire(after_ms) is None


def test_a_search_looks_twice_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    progress = SolarSchedule._progress

    def counting(self: SolarSchedule, when: float) -> float:
        nonlocal looks
        looks += 1
        return progress(self, when)

    monkeypatch.setattr(SolarSchedule, "_progress", counting)
    assert SolarSchedule("sunset", 52.5, 13.4).next_fire(ms("2025-06-01")) is not None
    assert looks < 20


@pytest.mark.parametrize(("event", "latitude"), [("sunset", 89.99), ("dusk_astronomical", 90.0), ("sunrise", -90.0)])
def test_a_question_searches_days_not_months(monkeypatch: pytest.MonkeyPatch, event: str, latitude: float) -> None:
    """Hundreds of such monitors would otherwise hold up every other polled job for as long as they are asked."""
    looks = 0
    progress = SolarSchedule._progress

    def counting(self: SolarSchedule, when: float) -> float:
        nonlocal looks
        looks += 1
        return progress(self, when)

    begin_ms = ms("2025-04-01")
    expected = SolarSchedule(event, latitude, 13.4).next_fire(begin_ms)
    monkeypatch.setattr(SolarSchedule, "_progress", counting)
    polled = SolarSchedule(event, latitude, 13.4)
    now_ms, fire_ms = begin_ms, None
    while fire_ms is None:
        looks = 0
        fire_ms, again_ms = polled.ask(now_ms)
        assert looks < 60
        assert again_ms > now_ms
        now_ms = again_ms
    assert fire_ms == expected


def test_events_missed_during_a_long_stall_are_offered_in_order() -> None:
    tromso = SolarSchedule("sunrise", 69.6, 18.9)
    begin_ms, end_ms = ms("2025-11-01"), ms("2026-02-15")
    tromso.ask(begin_ms)
    offered = []
    while (fire_ms := tromso.ask(end_ms).fire_ms) is not None:
        offered.append(fire_ms)
    assert offered == computed("sunrise", 69.6, 18.9, begin_ms, end_ms)
    assert len(offered) > 20


@pytest.mark.parametrize("latitude", [90, -90, 89.9, 75.0])
@pytest.mark.parametrize("event", ["sunset", "sunrise", "dusk_astronomical", "dawn_nautical"])
@pytest.mark.parametrize("after", ["2025-01-10", "2025-04-01", "2025-09-30"])
def test_the_months_without_an_event_are_skipped(
    monkeypatch: pytest.MonkeyPatch, event: str, latitude: float, after: str
) -> None:
    """A page of the admin shows a hundred monitors."""
    looks = 0
    progress = SolarSchedule._progress

    def counting(self: SolarSchedule, when: float) -> float:
        nonlocal looks
        looks += 1
        return progress(self, when)

    monkeypatch.setattr(SolarSchedule, "_quiet_days", lambda *_: 0)
    expected = SolarSchedule(event, latitude, 13.4).next_fire(ms(after))
    monkeypatch.undo()
    monkeypatch.setattr(SolarSchedule, "_progress", counting)
    assert SolarSchedule(event, latitude, 13.4).next_fire(ms(after)) == expected
    assert looks < 100
