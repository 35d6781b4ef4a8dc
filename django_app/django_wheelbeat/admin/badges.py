"""The state of a monitor as badges, readable without colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.utils.html import format_html, format_html_join
from django.utils.timesince import timeuntil
from django.utils.translation import gettext as _

from django_wheelbeat.monitors.rows import aware

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from django.utils.safestring import SafeString

    from django_wheelbeat.models import Monitor


def state_badges(monitor: Monitor, quarantine_reason: str | None, now: datetime) -> SafeString:
    """Return badges that show whether ``monitor`` fires and, if not, why."""
    badges = list(_badges(monitor, quarantine_reason, now)) or [("on", _("enabled"), "")]
    return format_html_join(" ", '<span class="wheelbeat-badge wheelbeat-{}">{}</span>{}', _with_reasons(badges))


def countdown(end: datetime, now: datetime) -> SafeString:
    """Return the time left until ``end``; a script updates it in the browser."""
    left, instant = timeuntil(end, now), aware(end).isoformat()
    return format_html('<time data-countdown datetime="{}" title="{}">{}</time>', instant, instant, left)


def _badges(monitor: Monitor, quarantine_reason: str | None, now: datetime) -> Iterator[tuple[str, str, str]]:
    if monitor.finished_at is not None:
        yield "off", _("finished"), ""
    if not monitor.enabled:
        yield "off", _("paused"), monitor.pause_reason
    if quarantine_reason is not None:
        yield "bad", _("quarantined"), quarantine_reason
    if monitor.incident_until is not None and monitor.incident_until >= now:
        yield "incident", format_html(_("incident, {} left"), countdown(monitor.incident_until, now)), ""


def _with_reasons(badges: list[tuple[str, str, str]]) -> Iterator[tuple[str, str, str]]:
    for kind, words, reason in badges:
        yield kind, words, format_html(' <span class="wheelbeat-reason">{}</span>', reason) if reason else ""
