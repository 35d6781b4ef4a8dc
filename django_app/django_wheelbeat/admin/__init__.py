"""The Django admin: monitors can be edited; change log, audit, beats and quarantine can only be read.

This module registers the ``ModelAdmin`` classes. ``monitor`` has the mixin for sites with another ``ModelAdmin``, and
the ``*_page`` modules have one page each. Imported by Django's autodiscovery and by ``templatetags`` only. May import
every other package of the app.

Never: asks a running beat or worker for its state (pages read status rows, the result backend and the claims), or
scans the table of monitors to show a page (a bulk action does count the monitors that it is about to change).
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.db.models import Q
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_wheelbeat.admin.change_list import QuarantineChangeList
from django_wheelbeat.admin.monitor import MonitorAdminMixin
from django_wheelbeat.admin.paginator import EstimatingPaginator
from django_wheelbeat.bulk import progress
from django_wheelbeat.bulk.operations import TryAgain
from django_wheelbeat.models import Audit, Beat, Change, Monitor, Quarantine
from django_wheelbeat.monitors.queryset import MONITOR_KEY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.http import HttpRequest
    from django.utils.safestring import SafeString


KEY_DIGITS = 19
"""A number with this many digits may exceed the range of a primary key."""


def indented(document: str) -> SafeString:
    """Return JSON with one value per line; text that is not JSON is shown unchanged."""
    with suppress(ValueError):
        document = json.dumps(json.loads(document), indent=2, ensure_ascii=False)
    return format_html('<pre class="wheelbeat-code">{}</pre>', document)


@admin.register(Monitor)
class MonitorAdmin(MonitorAdminMixin, admin.ModelAdmin):
    """Monitors under Django's own admin."""


def changes_in_words(document: str) -> SafeString:
    """Return the changes of an audit row, one line per column; text that is not a JSON object is shown unchanged."""
    try:
        changes = json.loads(document).items()
    except (ValueError, AttributeError):
        return format_html("{}", document)
    lines = [
        (column, f"{_shown(change[0])} → {_shown(change[1])}" if isinstance(change, list) else change)
        for column, change in changes
    ]
    return format_html_join("", '<div class="wheelbeat-change">{}: {}</div>', lines)


def _shown(value: Any) -> str:
    return "–" if value is None or value == "" else f"{value}"


def monitor_id_of(job_key: str) -> int | None:
    """Return the primary key in the key of a monitor; None for an entry."""
    digits = job_key.removeprefix(MONITOR_KEY_PREFIX)
    return int(digits) if digits != job_key and digits.removeprefix("-").isdecimal() else None


class ReadOnlyMixin:
    """For tables that only beats and triggers write: no user may add, change or delete rows."""

    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = EstimatingPaginator
    actions = None

    class Media:
        css = {"all": ["wheelbeat/wheelbeat.css"]}

    def has_add_permission(self, request: Any) -> bool:  # noqa: ARG002 - Django's signature
        """Return False."""
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002 - Django's signature
        """Return False."""
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002 - Django's signature
        """Return False."""
        return False


@admin.register(Change)
class ChangeAdmin(ReadOnlyMixin, admin.ModelAdmin):
    """The change log, newest first."""

    list_display = ("id", "at", "operation", "monitor_id", "actor", "reason")
    ordering = ("-id",)
    sortable_by = ()


@admin.register(Audit)
class AuditAdmin(ReadOnlyMixin, admin.ModelAdmin):
    """The audit (who changed what, and why), newest first."""

    list_display = ("at", "operation", "monitor_id", "monitors", "changes_shown", "actor", "reason")
    list_filter = ("operation", ("at", admin.DateFieldListFilter))
    ordering = ("-id",)
    sortable_by = ()
    search_fields = ("actor", "monitor_id")
    search_help_text = _("Full user name or monitor id.")

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:  # noqa: ARG002
        """Match whole values only, so that the indexes are used."""
        term = search_term.replace("\x00", "").strip()
        if not term:
            return queryset, False
        is_key = term.isascii() and term.removeprefix("-").isdigit() and len(term) < KEY_DIGITS
        return queryset.filter(Q(actor=term) | (Q(monitor_id=int(term)) if is_key else Q())), False

    @admin.display(description=_("changes"))
    def changes_shown(self, audit: Audit) -> SafeString:
        """Each changed column with its value before and after."""
        return changes_in_words(audit.changes)


@admin.register(Beat)
class BeatAdmin(ReadOnlyMixin, admin.ModelAdmin):
    """Beats and their last reports."""

    list_display = ("host", "pid", "version", "namespace", "started_at", "seen_at")
    ordering = ("-seen_at",)
    fields = (*list_display, "marks_shown", "status_shown")

    @admin.display(description=_("marks"))
    def marks_shown(self, beat: Beat) -> SafeString:
        """The mark of each destination: every run up to it is confirmed, or counted as skipped."""
        return indented(beat.marks)

    @admin.display(description=_("status"))
    def status_shown(self, beat: Beat) -> SafeString:
        """The status document."""
        return indented(beat.status)


@admin.register(Quarantine)
class QuarantineAdmin(ReadOnlyMixin, admin.ModelAdmin):
    """Definitions that cannot be sent, and why."""

    list_display = ("monitor", "job_key", "reason", "since")
    list_display_links = ("job_key",)
    fields = ("monitor", "job_key", "reason", "since", "definition_hash")
    ordering = ("-since",)
    search_fields = ("job_key",)
    actions = ("try_again",)

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Whether the user may make beats try again; like any edit, it needs permission to change monitors."""
        return request.user.has_perm("wheelbeat.change_monitor")

    def monitors(self, request: HttpRequest) -> Any:
        """Return the monitors that the user may see: those of the site's own monitor admin, if it has one."""
        own = self.admin_site._registry.get(Monitor)
        return Monitor.objects.all() if own is None else own.get_queryset(request)

    def read_names(self, request: HttpRequest, rows: Iterable[Quarantine]) -> None:
        """Set ``monitor_name`` of each row; empty for entries and for monitors that the user may not see."""
        ids = {row.job_key: monitor_id_of(row.job_key) for row in rows}
        wanted = [job_id for job_id in ids.values() if job_id is not None]
        names = dict(self.monitors(request).filter(pk__in=wanted).values_list("pk", "name"))
        for row in rows:
            row.monitor_name = names.get(ids[row.job_key], "")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[QuarantineChangeList]:  # noqa: ARG002
        """Return the list that reads names of monitors."""
        return QuarantineChangeList

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Quarantine | None:
        """Read one row, with its name."""
        found = super().get_object(request, object_id, from_field)
        self.read_names(request, [found] if found else [])
        return found

    @admin.display(description=_("monitor"), empty_value="–")
    def monitor(self, quarantine: Quarantine) -> SafeString | str | None:
        """Name of the monitor, linked to its page; None for an entry, whose key contains its name."""
        if not quarantine.monitor_name:
            return None
        try:
            url = reverse(f"{self.admin_site.name}:wheelbeat_monitor_change", args=[monitor_id_of(quarantine.job_key)])
        except NoReverseMatch:  # monitors are registered in another site
            return quarantine.monitor_name
        return format_html('<a href="{}">{}</a>', url, quarantine.monitor_name)

    @admin.action(permissions=["retry"], description=_("Try selected monitors again"))
    def try_again(self, request: HttpRequest, queryset: Any) -> None:
        """Make beats read the monitors again; those that can run now, e.g. after a deploy, leave quarantine."""
        keys = list(queryset.values_list("job_key", flat=True))
        ids = [job_id for job_id in map(monitor_id_of, keys) if job_id is not None]
        monitors = self.monitors(request).using(queryset.db).filter(pk__in=ids)
        operation = TryAgain(request.user.get_username(), gettext("try again"))
        bulk_pass = progress.begin("", request.user, monitors, monitors.count(), "")
        while not bulk_pass.finished:
            bulk_pass = progress.step(bulk_pass, monitors, operation, request.user)
        touched = bulk_pass.changed
        text = ngettext("%(count)d monitor will be tried again.", "%(count)d monitors will be tried again.", touched)
        self.message_user(request, text % {"count": touched}, messages.SUCCESS)
        if len(ids) < len(keys):
            text = gettext("Entries of beat_schedule are tried again when a beat starts with changed code.")
            self.message_user(request, text, messages.WARNING)
