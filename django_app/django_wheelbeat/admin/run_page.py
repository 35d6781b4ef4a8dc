"""Run now: a button on the change page and an action on the list, for users with permission ``run_monitor``.

Every form contains a request id, created when the form is shown, so submitting it twice sends one run. A GET never
sends. Selections of any size are processed in bounded steps, one per page; if the broker fails, the page offers to
continue.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import unquote
from django.contrib.auth import get_permission_codename
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_POST

from celery_wheelbeat.commands.run_now import new_request, read_request
from celery_wheelbeat.errors import InvalidMonitor, InvalidRequest, SendFailed
from django_wheelbeat.admin.actions import asked_again, refusals_in_words, scope_of
from django_wheelbeat.admin.pages import admin_page
from django_wheelbeat.bulk import progress
from django_wheelbeat.bulk.chunk import note_all
from django_wheelbeat.database.audit_triggers import BULK_ROWS
from django_wheelbeat.database.chunks import chunks_of_ids
from django_wheelbeat.monitors.run_now import run_monitors
from django_wheelbeat.monitors.times import now_ms

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from django.http import HttpRequest, HttpResponse
    from django.template.response import TemplateResponse

    from django_wheelbeat.bulk.chunk import Entries
    from django_wheelbeat.bulk.progress import BulkPass

CHUNK_SENT = 500
"""Runs sent between two checks of the elapsed time."""


class RunNowMixin:
    """Adds the button to a ``ModelAdmin`` of monitors."""

    def has_run_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002 - Django's signature
        """Whether the user may run monitors manually; view permission is checked separately."""
        codename = get_permission_codename("run", self.opts)
        return request.user.has_perm(f"{self.opts.app_label}.{codename}")

    def get_urls(self) -> list[Any]:
        """Add the URL to which the button posts."""
        view = self.admin_site.admin_view(require_POST(self.run_view))
        return [path("<path:object_id>/run/", view, name="wheelbeat_monitor_run"), *super().get_urls()]

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], **kwargs: Any) -> HttpResponse:
        """Add the button's request id to the page of a stored monitor."""
        if kwargs.get("obj") is not None and self.has_run_permission(request, kwargs["obj"]):
            context["run_request"] = new_request(now_ms())
        return super().render_change_form(request, context, **kwargs)

    def run_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Send one run of the stored monitor and redirect to its page."""
        monitor = self.get_object(request, unquote(object_id))
        if monitor is None:
            raise Http404
        if not self.has_view_or_change_permission(request, monitor) or not self.has_run_permission(request, monitor):
            raise PermissionDenied
        try:
            run_id = monitor.run_now(read_request(request.POST.get("request", ""), now_ms()))
        except InvalidRequest:
            self.message_user(request, _stale(), messages.ERROR)
        except (InvalidMonitor, SendFailed) as problem:
            text = _("“%(name)s” was not sent: %(problem)s") % {"name": monitor, "problem": problem}
            self.message_user(request, text, messages.ERROR)
        else:
            text = _("“%(name)s” was sent as run %(run)s.") % {"name": monitor, "run": run_id}
            self.message_user(request, text, messages.SUCCESS)
            LogEntry.objects.log_actions(request.user.pk, [monitor], CHANGE, change_message=_ran(run_id))
        page = reverse(f"{self.admin_site.name}:wheelbeat_monitor_change", args=[object_id])
        return HttpResponseRedirect(page)


@admin.action(permissions=["run"], description=gettext_lazy("Run selected monitors now…"))
def run_monitors_now(modeladmin: Any, request: HttpRequest, queryset: Any) -> TemplateResponse | None:
    """Ask for confirmation, then send one run of each selected monitor, including paused ones."""
    scope = scope_of(request)
    bulk_pass = progress.read(request.POST.get("progress", ""), scope, request.user)
    if bulk_pass is None and "run" not in request.POST:
        return _ask(modeladmin, request, queryset)
    try:
        asked = read_request(request.POST.get("request", "") if bulk_pass is None else bulk_pass.given, now_ms())
    except InvalidRequest:
        modeladmin.message_user(request, _stale(), messages.ERROR)
        return _ask(modeladmin, request, queryset)
    bulk_pass = bulk_pass or progress.begin(scope, request.user, queryset, _count(queryset), str(asked))
    bulk_pass, failure = _send_some(bulk_pass, queryset, asked, request.user)
    if failure:
        text = _("%(done)d of %(count)d runs were sent, then: %(failure)s Continue to send the rest.")
        values = {"done": bulk_pass.changed, "count": bulk_pass.total, "failure": failure}
        modeladmin.message_user(request, text % values, messages.ERROR)
    if not bulk_pass.finished:
        context = {
            "bulk_pass": bulk_pass,
            "title": _("Run monitors now"),
            "halted": bool(failure),
            **asked_again(request),
        }
        return admin_page(modeladmin, request, "progress", context)
    if bulk_pass.refused:
        modeladmin.message_user(request, refusals_in_words(bulk_pass), messages.WARNING)
    text = ngettext("%(count)d run was sent.", "%(count)d runs were sent.", bulk_pass.changed) % {
        "count": bulk_pass.changed
    }
    modeladmin.message_user(request, text, messages.SUCCESS)
    return None


def _send_some(bulk_pass: BulkPass, queryset: Any, asked: UUID, user: Any) -> tuple[BulkPass, str]:
    """Send some more runs in key order; return the pass after them, and the failure, if any, as text."""
    started_s = monotonic()
    every = queryset.model._default_manager.using(queryset.db)
    for keys in chunks_of_ids(queryset.filter(pk__gt=bulk_pass.after, pk__lte=bulk_pass.until), CHUNK_SENT):
        sent = run_monitors(every.filter(pk__in=keys).order_by("pk"), asked, using=queryset.db)
        tried = len(sent.run_ids) + len(sent.refused) if sent.failure else len(keys)
        bulk_pass = bulk_pass._replace(
            after=keys[tried - 1] if tried else bulk_pass.after,
            seen=bulk_pass.seen + tried,
            refused=bulk_pass.refused + len(sent.refused),
            refusals=(*bulk_pass.refusals, *sent.refused.items())[: progress.REFUSED_SHOWN],
            entries=_note(bulk_pass, every, sent.run_ids, user),
        )
        if sent.failure or monotonic() - started_s >= progress.STEP_S:
            return bulk_pass, sent.failure
    return bulk_pass._replace(after=bulk_pass.until), ""


class _RunNote(NamedTuple):
    """Entry of a large bulk of runs in Django's history."""

    message: str
    flag: int = CHANGE


def _note(bulk_pass: BulkPass, every: Any, run_ids: Mapping[int, str], user: Any) -> Entries:
    """Write the runs to Django's history: one entry per monitor, or a single one for a large bulk."""
    entries = bulk_pass.entries._replace(changed=bulk_pass.changed + len(run_ids))
    if not run_ids:
        return entries
    if bulk_pass.total > BULK_ROWS:
        return entries._replace(history_id=note_all(every.model, _RunNote(_("Run now.")), user, entries))
    for monitor in every.filter(pk__in=list(run_ids)).only("pk", "name"):
        LogEntry.objects.log_actions(user.pk, [monitor], CHANGE, change_message=_ran(run_ids[monitor.pk]))
    return entries


def _count(queryset: Any) -> int:
    return int(queryset.order_by().values("pk").count())


def _ask(modeladmin: Any, request: HttpRequest, queryset: Any) -> TemplateResponse:
    context = {
        "title": _("Run monitors now"),
        "count": _count(queryset),
        "run_request": new_request(now_ms()),
        **asked_again(request),
    }
    return admin_page(modeladmin, request, "run", context)


def _ran(run_id: str) -> str:
    return _("Run now: %(run)s") % {"run": run_id}


def _stale() -> str:
    return _("The page was opened more than an hour ago, so nothing was sent. Please try again from this page.")
