"""Solar events at a place: sunrise, sunset, noon and the three twilights, computed with the ephem library.

Pure for one version of ephem: an event is the same to the second from wherever the search starts. Too slow for the
wheel, so the poll lane asks for it.
"""

from __future__ import annotations

import math
from itertools import count
from typing import NamedTuple

from celery_wheelbeat.errors import InvalidSchedule
from celery_wheelbeat.schedules.kinds import NEVER_MS, Asked
from celery_wheelbeat.schedules.zones import EARLIEST_S, LATEST_S

_DAY_S = 86_400
_DAY_MS = _DAY_S * 1000
_SEARCH_DAYS = 367
"""An event that does not occur within a year never occurs."""
_AHEAD_DAYS = 8
"""Days that one question of the poll lane searches, beyond the present."""
_CLIMB = math.radians(0.5)
"""Bound in radians on the change of the sun's height at noon and at midnight from one day to the next, 0.41 degrees."""
_EPHEM_EPOCH = 25_567.5
"""1970-01-01T00:00Z in ephem's days, counted from noon of 1899-12-31."""
_MEAN = 0.02
"""Bound in days on the distance between solar noon and mean noon."""
_PRECISE = 0.01 / _DAY_S
"""Precision in days to which a passage is found."""


class _Event(NamedTuple):
    rises: bool | None
    """True: the sun rises through the horizon; False: it sets; None: it crosses the meridian."""
    horizon: str = "0"
    """Altitude of the sun, degrees:minutes."""
    centre: bool = True
    """``horizon`` refers to the sun's centre; else to its upper limb."""


EVENTS = {
    "dawn_astronomical": _Event(True, "-18"),
    "dawn_nautical": _Event(True, "-12"),
    "dawn_civil": _Event(True, "-6"),
    "sunrise": _Event(True, "-0:34", centre=False),
    "solar_noon": _Event(None),
    "sunset": _Event(False, "-0:34", centre=False),
    "dusk_civil": _Event(False, "-6"),
    "dusk_nautical": _Event(False, "-12"),
    "dusk_astronomical": _Event(False, "-18"),
}


class SolarSchedule:
    """Fires at a solar event, rounded to the second. Not safe to share between threads."""

    def __init__(self, event: str, latitude: float, longitude: float) -> None:
        """``latitude`` -90 to 90 (north > 0), ``longitude`` -180 to 180 (east > 0), in degrees.

        Raises ``InvalidSchedule`` for values out of range, and if ephem is not installed.
        """
        if event not in EVENTS:
            raise InvalidSchedule(f"solar event {event!r}: expected one of {', '.join(EVENTS)}")
        if not -90 <= latitude <= 90:
            raise InvalidSchedule(f"latitude {latitude}: expected degrees from -90 to 90")
        if not -180 <= longitude <= 180:
            raise InvalidSchedule(f"longitude {longitude}: expected degrees from -180 to 180")
        try:
            import ephem  # noqa: PLC0415 - optional: only solar schedules need it
        except ImportError as error:
            raise InvalidSchedule(f"solar event {event!r} needs the ephem library: pip install ephem") from error
        self.event, self.latitude, self.longitude = event, latitude, longitude
        self._sun, self._observer = ephem.Sun(), ephem.Observer()
        self._observer.lat, self._observer.lon = str(latitude), str(longitude)
        self._observer.elevation, self._observer.pressure = 0, 0
        self._observer.horizon = EVENTS[event].horizon
        self._next_ms: int | None = None
        """The next event to fire; None if the days searched have none."""
        self._searched_ms: int | None = None
        """``_next_ms`` is the only event up to here that is still to be fired. None: nothing was asked yet."""

    def next_fire(self, after_ms: int) -> int | None:
        """Return the first event strictly after ``after_ms``; None if there is none within a year or up to 9999."""
        return self._first(after_ms, _SEARCH_DAYS)

    def _first(self, after_ms: int, days: int) -> int | None:
        """Return the first event strictly after ``after_ms``; None if none of the next ``days`` days has one."""
        if after_ms >= LATEST_S * 1000:
            return None
        after_ms = max(after_ms, EARLIEST_S * 1000)
        after = _EPHEM_EPOCH + (after_ms // 1000 + 0.4) / _DAY_S  # earlier passages round to ≤ after_ms
        number = math.floor(2 * (after - _MEAN - self._mean_noon(0)))
        if EVENTS[self.event].rises is None:
            return next(fire_ms for noon in count(number // 2) if (fire_ms := self._noon_ms(noon)) > after_ms)
        begin = self._culmination(number)
        before = self._progress(begin)
        following, last = number + 1, number + 2 * days
        while following < last:
            end = self._culmination(following)
            behind = self._progress(end)
            if before < 0 <= behind and not (begin < after and self._progress(after) >= 0):
                fire_ms = _ms(self._passage(begin, before, end, behind))
                if fire_ms > after_ms:
                    return fire_ms
            quiet = 2 * self._quiet_days(before, behind)
            begin, before = end, behind
            if quiet:
                following += quiet
                begin = self._culmination(following)
                before = self._progress(begin)
            following += 1
        return None

    def _quiet_days(self, before: float, behind: float) -> int:
        """Return how many days after two culminations cannot have an event: the sun is too far from the horizon."""
        if (before < 0) is not (behind < 0):
            return 0
        horizon = float(self._observer.horizon)
        side = 1 if EVENTS[self.event].rises else -1
        heights = (math.asin(max(-1.0, min(1.0, side * above + math.sin(horizon)))) for above in (before, behind))
        return max(0, int(min(abs(height - horizon) for height in heights) / _CLIMB) - 1)

    def ask(self, now_ms: int) -> Asked:
        """Return the event due at ``now_ms``, if any; several missed events are returned one by one.

        Looks ``_AHEAD_DAYS`` ahead and then asks to be asked again: near a pole the next event may be months away, and
        a search through months would delay the other polled jobs.
        """
        if self._next_ms is None:
            self._look_ahead(now_ms if self._searched_ms is None else self._searched_ms, now_ms)
        fire_ms = self._next_ms
        if fire_ms is not None and fire_ms <= now_ms:
            self._look_ahead(fire_ms, now_ms)
            return Asked(fire_ms, self._ask_again_ms())
        return Asked(None, self._ask_again_ms())

    def _look_ahead(self, after_ms: int, now_ms: int) -> None:
        days = _AHEAD_DAYS + max(0, now_ms - after_ms) // _DAY_MS
        self._next_ms = self._first(after_ms, days)
        self._searched_ms = after_ms + (days - 1) * _DAY_MS  # the last culmination may come up to a day earlier

    def _ask_again_ms(self) -> int:
        if self._next_ms is not None:
            return self._next_ms
        if self._searched_ms is None or self._searched_ms >= LATEST_S * 1000:
            return NEVER_MS
        return self._searched_ms

    def _mean_noon(self, day: int) -> float:
        return _EPHEM_EPOCH + day + 0.5 - self.longitude / 360

    def _noon_ms(self, day: int) -> int:
        return _ms(self._observer.next_transit(self._sun, start=self._mean_noon(day) - 0.5))

    def _culmination(self, number: int) -> float:
        """Return when the sun crosses the meridian: at its highest for an even ``number``, else at its lowest.

        Between two culminations the sun only climbs or only sinks, also near a pole, so there is one passage at most.
        The search brackets a passage by culminations, so its result does not depend on where the search started.
        """
        near = self._mean_noon(0) + number / 2
        self._observer.date = near
        self._sun.compute(self._observer)
        ahead = (number % 2 * math.pi - float(self._sun.ha) + math.pi) % math.tau - math.pi
        return near + ahead / math.tau

    def _passage(self, begin: float, before: float, end: float, behind: float) -> float:
        """Return when the sun passes the horizon, by the method of false position (Illinois variant)."""
        moved = 0
        while end - begin > _PRECISE:
            middle = begin + (end - begin) * before / (before - behind)
            middle = min(max(middle, begin + _PRECISE / 2), end - _PRECISE / 2)
            found = self._progress(middle)
            if found < 0:
                begin, before, behind = middle, found, behind / 2 if moved < 0 else behind
                moved = -1
            else:
                end, behind, before = middle, found, before / 2 if moved > 0 else before
                moved = 1
        return end

    def _progress(self, when: float) -> float:
        """Return ≥ 0 if the sun is past the horizon in the direction of the event; ephem's formula."""
        event = EVENTS[self.event]
        self._observer.date = when
        self._sun.compute(self._observer)
        latitude, declination = float(self._observer.lat), float(self._sun.dec)
        horizon = float(self._observer.horizon) - (0 if event.centre else float(self._sun.radius))
        sine = math.sin(latitude) * math.sin(declination)
        sine += math.cos(latitude) * math.cos(declination) * math.cos(self._sun.ha)
        above = sine - math.sin(horizon)
        return above if event.rises else -above


def _ms(when: float) -> int:
    """Return an instant of ephem in ms, rounded to the second."""
    return round((when - _EPHEM_EPOCH) * _DAY_S) * 1000
