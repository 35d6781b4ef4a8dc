"""The page of incidents: running ones with their remaining time, and a form that starts one for a tag.

The page only reads. Its forms submit the bulk actions of the list, with their confirmation, progress and history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from django.core.exceptions import PermissionDenied
from django.db.models import Count
from django.urls import path
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET

from celery_wheelbeat.schedules.durations import format_duration
from django_wheelbeat.admin.badges import countdown
from django_wheelbeat.admin.bulk_forms import SpeedUpForm
from django_wheelbeat.admin.pages import admin_page

if TYPE_CHECKING:
    from django.http import HttpRequest
    from django.template.response import TemplateResponse
    from django.utils.safestring import SafeString

GROUPS_SHOWN = 100


class Running(NamedTuple):
    """Monitors with equal tags and equal incidents."""

    tags: list[str]
    every: str
    left: SafeString
    count: int


class IncidentsPageMixin:
    """Adds the page to a ``ModelAdmin`` of monitors."""

    def get_urls(self) -> list[Any]:
        """Add the URL of the page."""
        view = self.admin_site.admin_view(require_GET(self.incidents_view))
        return [path("incidents/", view, name="wheelbeat_monitor_incidents"), *super().get_urls()]

    def incidents_view(self, request: HttpRequest) -> TemplateResponse:
        """Show running incidents; with ``?tag=`` also the form for that tag, if the user may change monitors."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        tag = request.GET.get("tag", "").replace("\x00", "").strip()
        may_change = self.has_change_permission(request)
        context = {
            "title": _("Incidents"),
            "running": self._running(request),
            "tag": tag,
            "tagged": self.get_paginator(request, self.get_queryset(request).tagged(tag), 1) if tag else None,
            "may_change": may_change,
            "form": SpeedUpForm() if tag and may_change else None,
        }
        return admin_page(self, request, "incidents", context)

    def _running(self, request: HttpRequest) -> list[Running]:
        now = timezone.now()
        groups = (
            self.get_queryset(request)
            .in_incident(now)
            .order_by("incident_until", "tags")
            .values_list("tags", "incident_interval_ms", "incident_until")
            .annotate(count=Count("pk"))
        )
        return [
            Running(list(filter(None, tags.split(","))), format_duration(every_ms), countdown(until, now), count)
            for tags, every_ms, until, count in groups[:GROUPS_SHOWN]
        ]
