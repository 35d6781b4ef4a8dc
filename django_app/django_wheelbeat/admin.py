"""Registers the admin: monitors to edit; change log, beats and quarantine to read."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from django_wheelbeat.models import Beat, Change, Monitor, Quarantine
from django_wheelbeat.monitor_admin import MonitorAdminMixin
from django_wheelbeat.paginator import EstimatingPaginator

if TYPE_CHECKING:
    from django.utils.safestring import SafeString


def indented(document: str) -> SafeString:
    """Show JSON with one value per line; what is no JSON as it is."""
    with suppress(ValueError):
        document = json.dumps(json.loads(document), indent=2, ensure_ascii=False)
    return format_html('<pre class="wheelbeat-code">{}</pre>', document)


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
    fields = (*list_display, "marks_shown", "status_shown")

    @admin.display(description=_("marks"))
    def marks_shown(self, beat: Beat) -> SafeString:
        """Up to where everything is confirmed, per destination."""
        return indented(beat.marks)

    @admin.display(description=_("status"))
    def status_shown(self, beat: Beat) -> SafeString:
        """The status document."""
        return indented(beat.status)


@admin.register(Quarantine)
class QuarantineAdmin(ReadOnlyMixin, admin.ModelAdmin):
    """Definitions that cannot be sent, and why."""

    list_display = ("job_key", "reason", "since")
    ordering = ("-since",)
    search_fields = ("job_key",)
