"""Registers the admin: monitors to edit; change log, beats and quarantine to read."""

from __future__ import annotations

from typing import Any

from django.contrib import admin

from django_wheelbeat.models import Beat, Change, Monitor, Quarantine
from django_wheelbeat.monitor_admin import MonitorAdminMixin
from django_wheelbeat.paginator import EstimatingPaginator


@admin.register(Monitor)
class MonitorAdmin(MonitorAdminMixin, admin.ModelAdmin):
    """Monitors under Django's own admin."""


class ReadOnlyMixin:
    """Rows that only a beat or a trigger writes: everyone may at most look."""

    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = EstimatingPaginator
    actions = None

    class Media:
        css = {"all": ["wheelbeat/wheelbeat.css"]}

    def has_add_permission(self, request: Any) -> bool:  # noqa: ARG002 - Django's signature
        """Nobody adds."""
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002 - Django's signature
        """Nobody edits."""
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002 - Django's signature
        """Nobody deletes."""
        return False


@admin.register(Change)
class ChangeAdmin(ReadOnlyMixin, admin.ModelAdmin):
    """The change log, newest first."""

    list_display = ("id", "at", "operation", "monitor_id", "actor", "reason")
    ordering = ("-id",)
    sortable_by = ()


@admin.register(Beat)
class BeatAdmin(ReadOnlyMixin, admin.ModelAdmin):
    """Beats and what they reported last."""

    list_display = ("host", "pid", "version", "namespace", "started_at", "seen_at")
    ordering = ("-seen_at",)


@admin.register(Quarantine)
class QuarantineAdmin(ReadOnlyMixin, admin.ModelAdmin):
    """Definitions that cannot be sent, and why."""

    list_display = ("job_key", "reason", "since")
    ordering = ("-since",)
    search_fields = ("job_key",)
