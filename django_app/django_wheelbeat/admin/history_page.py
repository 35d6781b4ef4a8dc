"""The page of one monitor's past runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import current_app
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404
from django.urls import path
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET

from django_wheelbeat.active_periods import active_periods_of, pauses_of
from django_wheelbeat.admin.local_times import local_time
from django_wheelbeat.admin.pages import admin_page
from django_wheelbeat.admin.past_runs import history_of
from django_wheelbeat.monitors.settings import beat_settings
from django_wheelbeat.monitors.times import now_ms

if TYPE_CHECKING:
    from django.http import HttpRequest
    from django.template.response import TemplateResponse


class HistoryPageMixin:
    """Adds the page to a ``ModelAdmin`` of monitors."""

    def get_urls(self) -> list[Any]:
        """Add the URL of the page."""
        view = self.admin_site.admin_view(require_GET(self.runs_view))
        return [path("<path:object_id>/runs/", view, name="wheelbeat_monitor_runs"), *super().get_urls()]

    def runs_view(self, request: HttpRequest, object_id: str) -> TemplateResponse:
        """Show the past runs."""
        monitor = self.get_object(request, unquote(object_id))
        if monitor is None:
            raise Http404
        if not self.has_view_permission(request, monitor):
            raise PermissionDenied
        instant_ms = now_ms()
        history = history_of(monitor, current_app, beat_settings(), instant_ms)
        periods = active_periods_of(monitor, instant_ms)
        context = {
            "title": _("Past runs of %(name)s") % {"name": monitor},
            "monitor": monitor,
            "since": local_time(periods[-1].begin_ms, monitor.timezone) if periods else "–",
            "pauses": [
                (local_time(pause.begin_ms, monitor.timezone), local_time(pause.end_ms, monitor.timezone))
                for pause in pauses_of(periods)
            ],
            "notes": history.notes,
            "runs": [(local_time(run.fire_ms, monitor.timezone), run) for run in history.runs],
        }
        return admin_page(self, request, "runs", context)
