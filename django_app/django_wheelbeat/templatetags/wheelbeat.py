"""Parts of admin pages that every wheelbeat page shows."""

from __future__ import annotations

from typing import Any

from django import template
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from django_wheelbeat.banner import beat_silence
from django_wheelbeat.instants import in_zone as instant_in_zone

register = template.Library()

PAGES = (
    ("wheelbeat_monitor_scheduler", _("Scheduler"), ("view_scheduler",)),
    ("wheelbeat_monitor_incidents", _("Incidents"), ("view_monitor",)),
    ("wheelbeat_monitor_import", _("Import"), ("add_monitor", "change_monitor", "import_monitor")),
)
"""Name of the address, words, permissions: all of them are needed."""


@register.inclusion_tag("wheelbeat/banner.html")
def wheelbeat_banner() -> dict[str, Any]:
    """Show a banner while no beat reports."""
    return {"silence": beat_silence()}


@register.inclusion_tag("wheelbeat/links.html", takes_context=True)
def wheelbeat_links(context: Any) -> dict[str, Any]:
    """Link the pages that the user may open."""
    user = context["request"].user
    return {
        "links": [
            (words, reverse(f"admin:{name}"))
            for name, words, permissions in PAGES
            if user.has_perms([f"wheelbeat.{codename}" for codename in permissions])
        ]
    }


@register.filter
def in_zone(instant_ms: int | None, zone_name: str) -> str:
    """Show an instant in ms in a zone; a dash for None."""
    return "–" if instant_ms is None else instant_in_zone(instant_ms, zone_name)
