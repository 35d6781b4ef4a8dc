"""IANA names of the time zone objects of Celery apps: zoneinfo, pytz, dateutil, fixed offsets, the host's zone.

A name is accepted only if the zone of that name has the same offsets as the object. Schedules in a zone without a name
are polled: a guessed zone would move their crontabs without notice.
"""

from __future__ import annotations

import os
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from celery.utils.time import LocalTimezone

from celery_wheelbeat.schedules.zones import names, offset_s
from celery_wheelbeat.schedules.zones import zone as zone_called

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMELESS = (
    "Celery's time zone is not an IANA zone of this machine: set `timezone` to an IANA name such as 'Europe/Berlin'"
)
"""Advice in messages about a zone without a name."""
_COMPARED_S = range(1_767_268_800, 2_145_960_000, 86_400)
"""Noon (UTC) of every day from 2026 to 2037, the end of pytz's tables."""
_KEPT = 64
_answers: dict[int, tuple[tzinfo, str | None]] = {}
"""Zone and name by ``id(zone)``, as some zone classes are not hashable; keeping the zone keeps its id unique."""


def timezone_of(app: Any) -> str | None:
    """Return the IANA name of the zone of the app's crontabs; None if it has none."""
    return zone_name(app.timezone)


def zone_name(zone: tzinfo | str | None) -> str | None:
    """Return the IANA name of a zone object, or None if it has none; a str is returned as it is."""
    if zone is None or isinstance(zone, str):
        return zone
    known = _answers.get(id(zone))
    if known is None:
        if len(_answers) >= _KEPT:
            _answers.clear()
        known = _answers[id(zone)] = zone, _find(zone)
    return known[1]


def _find(zone: tzinfo) -> str | None:
    try:
        return next((name for name in _candidates(zone) if name in names() and _same(zone, name)), None)
    except Exception:  # foreign code: the same error comes up when the poll lane asks it, as an error of that job
        return None


def _candidates(zone: tzinfo) -> Iterator[str]:
    if isinstance(zone, LocalTimezone):
        yield _name_of_the_machine()
    else:
        yield str(getattr(zone, "key", None) or getattr(zone, "zone", None))
    yield "UTC"


def _name_of_the_machine() -> str:
    """Return the host's zone as the C library reads it: the variable TZ, else the target of /etc/localtime."""
    variable = os.environ.get("TZ")
    return os.path.realpath("/etc/localtime").rpartition("zoneinfo/")[2] if variable is None else variable.lstrip(":")


def _same(zone: tzinfo, name: str) -> bool:
    if zone is UTC or zone is ZoneInfo(name):
        return True
    called = zone_called(name)
    return all(offset_s(zone, instant_s) == called.segment(instant_s).offset_s for instant_s in _COMPARED_S)
