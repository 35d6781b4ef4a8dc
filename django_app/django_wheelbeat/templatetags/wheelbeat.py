"""Template tags for elements that every wheelbeat page of the admin shows."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django import template
from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext_lazy as _

from django_wheelbeat.admin.beats import beat_silence
from django_wheelbeat.admin.local_times import local_time

if TYPE_CHECKING:
    from django.http import HttpRequest

register = template.Library()

PAGES = (
    ("wheelbeat_monitor_scheduler", _("Scheduler"), ("view_scheduler",)),
    ("wheelbeat_monitor_one_off_runs", _("One-off runs"), ("view_oneoffrun",)),
    ("wheelbeat_monitor_incidents", _("Incidents"), ("view_monitor",)),
    ("wheelbeat_monitor_import", _("Import"), ("add_monitor", "change_monitor", "import_monitor")),
)
"""URL name, label, and permissions (all of them are required)."""


@register.inclusion_tag("wheelbeat/banner.html")
def wheelbeat_banner() -> dict[str, Any]:
    """Show a banner while no beat reports."""
    return {"silence": beat_silence()}


@register.inclusion_tag("wheelbeat/links.html", takes_context=True)
def wheelbeat_links(context: Any) -> dict[str, Any]:
    """Show links to the pages that the user may open."""
    request = context["request"]
    links = []
    for name, words, permissions in PAGES:
        if request.user.has_perms([f"wheelbeat.{codename}" for codename in permissions]):
            with suppress(NoReverseMatch):  # for example a site with beats but without monitors
                links.append((words, reverse(f"admin:{name}", current_app=_site_of(request))))
    return {"links": links}


def _site_of(request: HttpRequest) -> str | None:
    """Return the name of the current admin site, which need not be the default one."""
    named = getattr(request, "current_app", None)
    if named is not None or request.resolver_match is None:
        return named
    return request.resolver_match.namespace


register.filter("local_time", local_time)
