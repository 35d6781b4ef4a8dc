"""The admin of monitors as a mixin, for sites with another ``ModelAdmin``.

``class MonitorAdmin(MonitorAdminMixin, unfold.admin.ModelAdmin)``.
"""

from __future__ import annotations

import json
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from django.contrib.admin import ShowFacets, display
from django.contrib.admin.models import LogEntry
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, router
from django.forms import modelform_factory
from django.http import JsonResponse
from django.template.loader import render_to_string
from django.urls import path, reverse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET

from celery_wheelbeat.schedules.durations import format_duration
from django_wheelbeat.active_periods import active_periods_of
from django_wheelbeat.admin import actions, filters
from django_wheelbeat.admin.badges import state_badges
from django_wheelbeat.admin.change_list import TEXTS, MonitorChangeList
from django_wheelbeat.admin.form import ROUTING_FIELDS, MonitorForm, PreviewForm, showable
from django_wheelbeat.admin.history_page import HistoryPageMixin
from django_wheelbeat.admin.incidents_page import IncidentsPageMixin
from django_wheelbeat.admin.known_tasks import offered_tasks
from django_wheelbeat.admin.local_times import local_time, site_zone
from django_wheelbeat.admin.one_off_runs_page import OneOffRunsPageMixin
from django_wheelbeat.admin.pages import MonitorPermissions, allowed
from django_wheelbeat.admin.paginator import EstimatingPaginator
from django_wheelbeat.admin.preview import PREVIEW_FIELDS, last_fire_ms, preview_of
from django_wheelbeat.admin.run_page import RunNowMixin, run_monitors_now
from django_wheelbeat.admin.schedule_text import schedule_in_words
from django_wheelbeat.admin.scheduler_page import SchedulerPageMixin
from django_wheelbeat.admin.transfer_page import TransferPageMixin, export_as_csv, export_as_json_lines
from django_wheelbeat.database.actors import acting
from django_wheelbeat.monitors.form_fields import EXPIRES_NEXT, DatalistInput
from django_wheelbeat.monitors.rows import row_of
from django_wheelbeat.monitors.settings import beat_settings
from django_wheelbeat.monitors.times import now_ms
from django_wheelbeat.monitors.validation import refusal_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.http import HttpRequest, HttpResponse
    from django.utils.safestring import SafeString

    from django_wheelbeat.models import Monitor


PREVIEWS_PER_S = 10
"""Previews per user and second; more than anyone types, too few to cause load."""

IN_WORDS = {
    "interval_ms": ["interval"],
    "incident_interval_ms": ["incident_interval"],
    "expires_s": ["expires"],
    "tags": ["tag_list"],
    "change_reason": [],
    "definition_read": [],
}
"""Form field whose column differs from the typed text → readable fields shown instead."""


def in_words(fields: Iterable[Any]) -> list[Any]:
    """Replace the fields of a fieldset by readable ones, including rows of several fields."""
    return [
        shown
        for field in fields
        for shown in ([in_words(field)] if isinstance(field, list | tuple) else IN_WORDS.get(field, [field]))
    ]


class MonitorAdminMixin(
    MonitorPermissions,
    RunNowMixin,
    SchedulerPageMixin,
    OneOffRunsPageMixin,
    HistoryPageMixin,
    IncidentsPageMixin,
    TransferPageMixin,
):
    """List, form, preview and bulk actions of monitors."""

    form = MonitorForm
    list_display = ("name", "schedule", "next_fire", "state", "task", "queue", "tag_list", "id", "last_fire")
    list_filter = (
        "enabled",
        filters.TaskFilter,
        filters.QueueFilter,
        filters.TagFilter,
        filters.KindFilter,
        filters.IntervalBandFilter,
        filters.QuarantineFilter,
        filters.IncidentFilter,
    )
    search_fields = ("name", "task")
    search_help_text = _("Part of a name or of a task.")
    ordering = ("name",)
    sortable_by = ("name", "id")
    list_per_page = 100
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    paginator = EstimatingPaginator
    actions = (
        actions.pause_monitors,
        actions.resume_monitors,
        actions.edit_monitors,
        actions.speed_up_monitors,
        actions.end_incidents,
        run_monitors_now,
        export_as_json_lines,
        export_as_csv,
        actions.delete_selected,
    )
    readonly_fields = ("preview",)
    fieldsets = (
        (None, {"fields": ("name", "task", "args", "kwargs")}),
        (
            _("Schedule"),
            {
                "fields": ("interval_ms", "cron", "timezone", "day_rule", "jitter_s", "preview"),
                "description": _("Exactly one of interval, cron expression, single run and solar event."),
            },
        ),
        (
            _("Single run, solar event, bounds"),
            {
                "fields": (
                    "once_at",
                    ("solar_event", "solar_latitude", "solar_longitude"),
                    "start_at",
                    "end_at",
                    "one_off",
                ),
                "classes": ("collapse",),
            },
        ),
        (_("Incident"), {"fields": ("incident_interval_ms", "incident_until")}),
        (
            _("State"),
            {"fields": ("enabled", "pause_reason", "description", "tags", "change_reason", "definition_read")},
        ),
        (_("Missed and overlapping runs"), {"fields": ("misfire", "overlap"), "classes": ("collapse",)}),
        (_("Sending"), {"fields": ROUTING_FIELDS, "classes": ("collapse",)}),
    )

    class Media:
        css = {"all": ["wheelbeat/wheelbeat.css"]}
        js = ["wheelbeat/preview.js", "wheelbeat/countdown.js", "wheelbeat/local-times.js"]

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Show readable values instead of stored columns to users without change permission."""
        fieldsets = super().get_fieldsets(request, obj)
        if obj is None or self.has_change_permission(request, obj):
            return fieldsets
        return [(title, options | {"fields": in_words(options["fields"])}) for title, options in fieldsets]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[MonitorChangeList]:  # noqa: ARG002
        """Return the list that defers large texts."""
        return MonitorChangeList

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Offer only tasks of monitors that the user may see."""
        field = super().formfield_for_dbfield(db_field, request, **kwargs)
        if db_field.name == "task" and isinstance(field.widget, DatalistInput):
            seen = self.get_queryset(request)
            field.widget.offered = partial(
                offered_tasks, seen if self.has_view_or_change_permission(request) else seen.none()
            )
        return field

    @display(description=_("schedule"))
    def schedule(self, monitor: Monitor) -> str:
        """Schedule in words."""
        return schedule_in_words(row_of(monitor))

    @display(description=_("next run"), empty_value="–")
    def next_fire(self, monitor: Monitor) -> SafeString | None:
        """Next fire time in the monitor's zone, computed by ``MonitorChangeList``."""
        return None if monitor.next_fire_ms is None else local_time(monitor.next_fire_ms, monitor.timezone)

    @display(description=_("last due"), empty_value="–")
    def last_fire(self, monitor: Monitor) -> SafeString | None:
        """Last fire time within its periods, computed by ``MonitorChangeList``."""
        return None if monitor.last_fire_ms is None else local_time(monitor.last_fire_ms, monitor.timezone)

    @display(description=_("state"))
    def state(self, monitor: Monitor) -> SafeString:
        """Badges with reasons."""
        return state_badges(monitor, getattr(monitor, "quarantine_reason", None), timezone.now())

    @display(description=_("tags"))
    def tag_list(self, monitor: Monitor) -> str:
        """Tags with spaces, so that lines can break."""
        return str(monitor.tags).replace(",", ", ")

    @display(description=_("interval"), empty_value="–")
    def interval(self, monitor: Monitor) -> str | None:
        """Interval as it is typed."""
        return None if monitor.interval_ms is None else format_duration(monitor.interval_ms)

    @display(description=_("incident interval"), empty_value="–")
    def incident_interval(self, monitor: Monitor) -> str | None:
        """Incident interval as it is typed."""
        return None if monitor.incident_interval_ms is None else format_duration(monitor.incident_interval_ms)

    @display(description=_("expires"), empty_value="–")
    def expires(self, monitor: Monitor) -> str | None:
        """Expiry as it is typed."""
        if monitor.expires_next:
            return EXPIRES_NEXT
        return None if monitor.expires_s is None else format_duration(round(monitor.expires_s * 1000))

    @display(description=_("next runs"))
    def preview(self, monitor: Monitor) -> SafeString:
        """Panel with the schedule in words, fire times and notes; rendered here, updated by a script."""
        known = None if getattr(monitor, "schedule_refused", False) else preview_of(row_of(monitor), now_ms())
        context = {
            "preview": known,
            "url": reverse(f"{self.admin_site.name}:wheelbeat_monitor_preview"),
            "fields": " ".join(PREVIEW_FIELDS),
            "monitor_id": monitor.pk,
            "site_zone": site_zone(),
            **self._stored(monitor),
        }
        return render_to_string("wheelbeat/preview.html", context)

    def get_urls(self) -> list[Any]:
        """Add the URL of the preview."""
        view = self.admin_site.admin_view(require_GET(self.preview_view))
        return [path("preview/", view, name="wheelbeat_monitor_preview"), *super().get_urls()]

    def preview_view(self, request: HttpRequest) -> JsonResponse:
        """Return the preview of the schedule in the query string, as JSON for the form's script. Reads no monitor."""
        if not self.has_view_or_change_permission(request) and not self.has_add_permission(request):
            raise PermissionDenied
        if not allowed(f"preview.{request.user.pk}", PREVIEWS_PER_S, now_ms() // 1000):
            return JsonResponse({}, status=HTTPStatus.TOO_MANY_REQUESTS, headers={"Retry-After": "1"})
        widgets = partial(self.formfield_for_dbfield, request=request)
        form_class = modelform_factory(self.model, PreviewForm, PREVIEW_FIELDS, formfield_callback=widgets)
        form = form_class.of_query(request.GET)
        if form.is_valid():
            return JsonResponse(preview_of(row_of(form.instance), now_ms()).as_json())
        problems = [f"{form[name].label}: {text}" for name, texts in form.errors.items() for text in texts]
        return JsonResponse({"words": "", "zone": "", "fires": [], "notes": [], "problems": problems})

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> type[MonitorForm]:
        """Pass the database's refusal, if the request has met one, to the form."""
        form = super().get_form(request, obj, change=change, **kwargs)
        form.refused = getattr(request, "wheelbeat_refused", "")
        return form

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Return what the query string says of a new monitor, as far as the form can show it."""
        return showable(self.get_form(request), super().get_changeform_initial_data(request))

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Show an ``IntegrityError``, which a race can cause after validation, as an error of the form."""
        try:
            return super().changeform_view(request, *args, **kwargs)
        except IntegrityError as error:
            request.wheelbeat_refused = refusal_of(error, self.model)
            return super().changeform_view(request, *args, **kwargs)

    def save_model(self, request: HttpRequest, obj: Any, form: MonitorForm, change: bool) -> None:
        """Save with the user as actor and the form's reason."""
        with self._acting(request, form.cleaned_data.get("change_reason", "")):
            super().save_model(request, obj, form, change)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        """Delete under the name of the user."""
        with self._acting(request):
            super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        """Delete under the name of the user."""
        with self._acting(request):
            super().delete_queryset(request, queryset)

    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> Any:
        """Append the reason of the change to Django's history message."""
        message = super().construct_change_message(request, form, formsets, add)
        reason = form.cleaned_data.get("change_reason")
        if not reason:
            return message
        return f"{LogEntry(change_message=json.dumps(message)).get_change_message()} {reason}"

    def _stored(self, monitor: Monitor) -> dict[str, Any]:
        """Return badges and last fire time of the stored row, not of the form's values; empty for a new monitor."""
        stored = self.model._default_manager.with_quarantine().defer(*TEXTS).filter(pk=monitor.pk).first()
        if stored is None:
            return {}
        last_ms = last_fire_ms(row_of(stored), active_periods_of(stored, now_ms()), beat_settings())
        return {"state": self.state(stored), "last": None if last_ms is None else local_time(last_ms, stored.timezone)}

    def _acting(self, request: HttpRequest, reason: str = "") -> Any:
        return acting(request.user.get_username(), reason, using=router.db_for_write(self.model))
