"""Solar events at a place: sunrise, sunset, noon and the three twilights, computed by the ephem library.

Pure for one version of ephem: the same place and instant give the same event, to the second, wherever the search
began. Far too slow for the wheel, hence asked in the poll lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from celery_wheelbeat.errors import InvalidSchedule
from celery_wheelbeat.jobs import NEVER_MS, Asked

if TYPE_CHECKING:
    from collections.abc import Iterator

_DAY_S = 86_400
_SEARCH_DAYS = 367
"""An event that a whole year does not bring (a twilight that the latitude never sees) does not come."""
_EPHEM_EPOCH = 25_567.5
"""1970-01-01T00:00Z in ephem's days, which begin at noon of 1899-12-31."""


class _Event(NamedTuple):
    method: str
    horizon: str
    """Altitude of the sun, degrees:minutes."""
    centre: bool
    """Of the sun's centre; else of its upper limb."""


EVENTS = {
    "dawn_astronomical": _Event("next_rising", "-18", centre=True),
    "dawn_nautical": _Event("next_rising", "-12", centre=True),
    "dawn_civil": _Event("next_rising", "-6", centre=True),
    "sunrise": _Event("next_rising", "-0:34", centre=False),
    "solar_noon": _Event("next_transit", "0", centre=False),
    "sunset": _Event("next_setting", "-0:34", centre=False),
    "dusk_civil": _Event("next_setting", "-6", centre=True),
    "dusk_nautical": _Event("next_setting", "-12", centre=True),
    "dusk_astronomical": _Event("next_setting", "-18", centre=True),
}


class SolarSchedule:
    """Fires at a solar event, rounded to the second. Not safe to share between threads."""

    def __init__(self, event: str, latitude: float, longitude: float) -> None:
        """``latitude`` -90 to 90 (north > 0), ``longitude`` -180 to 180 (east > 0), in degrees.

        Raises ``InvalidSchedule`` for values out of range, and where ephem is not installed.
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
        self._ephem: Any = ephem
        self._observer = ephem.Observer()
        self._observer.lat, self._observer.lon = str(latitude), str(longitude)
        self._observer.elevation, self._observer.pressure = 0, 0
        self._observer.horizon = EVENTS[event].horizon
        self._next_ms: int | None = None

    def next_fire(self, after_ms: int) -> int | None:
        """Return the first event strictly after ``after_ms``, or None if the coming year has none."""
        # Local solar midnight, so that a day holds its own noon and, outside the polar circles, one of each event.
        midnight_s = round(-self.longitude / 360 * _DAY_S)
        day = (after_ms // 1000 - midnight_s) // _DAY_S
        for ahead in range(_SEARCH_DAYS):
            for event_s in self._events(midnight_s + (day + ahead) * _DAY_S):
                if event_s * 1000 > after_ms:
                    return event_s * 1000
        return None

    def ask(self, now_ms: int) -> Asked:
        """Offer the event that is due at ``now_ms``; several missed ones are offered one by one."""
        if self._next_ms is None:
            self._next_ms = self.next_fire(now_ms) or NEVER_MS
        if now_ms < self._next_ms:
            return Asked(None, self._next_ms)
        fire_ms = self._next_ms
        self._next_ms = self.next_fire(fire_ms) or NEVER_MS
        return Asked(fire_ms, self._next_ms)

    def _events(self, start_s: int) -> Iterator[int]:
        """Yield the events of one day from ``start_s`` on; always computed from there, so always the same."""
        event = EVENTS[self.event]
        options = {"use_center": True} if event.centre else {}
        start, end = _EPHEM_EPOCH + start_s / _DAY_S, _EPHEM_EPOCH + (start_s + _DAY_S) / _DAY_S
        while True:
            try:
                found = float(getattr(self._observer, event.method)(self._ephem.Sun(), start=start, **options))
            except self._ephem.CircumpolarError:
                return
            if found >= end:
                return
            yield round((found - _EPHEM_EPOCH) * _DAY_S)
            start = found + 1 / 24
