"""Instants as HTML elements: text in the monitor's zone, other zones in the title.

The title has the instant in UTC and in the site's zone; ``local-times.js`` adds the time left and the browser's zone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.utils import timezone
from django.utils.html import format_html

from django_wheelbeat.monitors.rows import to_datetime
from django_wheelbeat.monitors.times import in_zone

if TYPE_CHECKING:
    from django.utils.safestring import SafeString


def local_time(instant_ms: int | None, zone_name: str) -> SafeString | str:
    """Return an element for an instant in ms, in a zone; a dash for None and for values that older beats omit."""
    if not isinstance(instant_ms, int):
        return "–"
    shown = in_zone(instant_ms, zone_name)
    try:
        machine = to_datetime(instant_ms).isoformat()
    except OverflowError:
        return shown
    elsewhere = [text for text in (in_zone(instant_ms, "UTC"), in_zone(instant_ms, site_zone())) if text != shown]
    title = " · ".join(dict.fromkeys(elsewhere))
    return format_html('<time data-local-time datetime="{}" title="{}">{}</time>', machine, title, shown)


def site_zone() -> str:
    """Return the name of the zone in which Django shows instants to this user."""
    return timezone.get_current_timezone_name()
