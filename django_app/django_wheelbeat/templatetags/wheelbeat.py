"""Parts of admin pages that every wheelbeat page shows."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django import template
from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext_lazy as _

from django_wheelbeat.admin.beats import beat_silence
from django_wheelbeat.admin.moments import moment

if TYPE_CHECKING:
    from django.http import HttpRequest

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
    request = context["request"]
    links = []
    for name, words, permissions in PAGES:
        if request.user.has_perms([f"wheelbeat.{codename}" for codename in permissions]):
            with suppress(NoReverseMatch):  # a site that has the beats, say, but not the monitors
                links.append((words, reverse(f"admin:{name}", current_app=_site_of(request))))
    return {"links": links}


def _site_of(request: HttpRequest) -> str | None:
    """Return the name of the admin site that answers: monitors may be in one that is not the default."""
    named = getattr(request, "current_app", None)
    if named is not None or request.resolver_match is None:
        return named
    return request.resolver_match.namespace


register.filter("moment", moment)
