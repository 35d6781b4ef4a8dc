"""Run now in the admin: a button on the change page and an action on the list, for people with ``run_monitor``.

Every form carries its request, made when the form is shown: sent twice, it is one run. Nothing is ever sent for a GET.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import unquote
from django.contrib.auth import get_permission_codename
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_POST

from celery_wheelbeat.errors import InvalidMonitor, InvalidRequest, SendFailed
from celery_wheelbeat.run_now import new_request, read_request
from django_wheelbeat.instants import now_ms
from django_wheelbeat.pages import admin_page
from django_wheelbeat.run_now import run_monitors

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse
    from django.template.response import TemplateResponse

RUN_MAX = 1_000
"""Monitors that one form runs: they are sent while the browser waits."""


class RunNowMixin:
    """What a ``ModelAdmin`` of monitors needs for the button."""

    def has_run_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002 - Django's signature
        """Whether the user may run monitors by hand; looking at them is asked for beside it."""
        codename = get_permission_codename("run", self.opts)
        return request.user.has_perm(f"{self.opts.app_label}.{codename}")

    def get_urls(self) -> list[Any]:
        """Add the address that the button posts to."""
        view = self.admin_site.admin_view(require_POST(self.run_view))
        return [path("<path:object_id>/run/", view, name="wheelbeat_monitor_run"), *super().get_urls()]

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], **kwargs: Any) -> HttpResponse:
        """Give the page of a stored monitor the request of its button."""
        if kwargs.get("obj") is not None and self.has_run_permission(request, kwargs["obj"]):
            context["run_request"] = new_request(now_ms())
        return super().render_change_form(request, context, **kwargs)

    def run_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Send one run of the monitor, as it is stored, and return to its page."""
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
    """Ask on a page of its own, then send one run of each monitor of the selection, paused ones too."""
    keys = queryset.order_by("pk").values_list("pk", flat=True)[: RUN_MAX + 1]
    count = len(keys)
    if count > RUN_MAX:
        text = _("More than %(most)d monitors are selected; nothing was sent.") % {"most": RUN_MAX}
        modeladmin.message_user(request, text, messages.ERROR)
        return None
    if "run" not in request.POST:
        return _ask(modeladmin, request, new_request(now_ms()), count)
    try:
        asked = read_request(request.POST.get("request", ""), now_ms())
    except InvalidRequest:
        modeladmin.message_user(request, _stale(), messages.ERROR)
        return _ask(modeladmin, request, new_request(now_ms()), count)
    monitors = queryset.model._default_manager.using(queryset.db).filter(pk__in=list(keys)).order_by("pk")
    sent = run_monitors(monitors, asked, using=queryset.db)
    for monitor in monitors.only("pk", "name").filter(pk__in=list(sent.run_ids)):
        LogEntry.objects.log_actions(request.user.pk, [monitor], CHANGE, change_message=_ran(sent.run_ids[monitor.pk]))
    for name, problem in sent.refused.items():
        text = _("“%(name)s” was not sent: %(problem)s") % {"name": name, "problem": problem}
        modeladmin.message_user(request, text, messages.WARNING)
    done = len(sent.run_ids)
    if sent.failure:
        text = _("%(done)d of %(count)d runs were sent, then: %(failure)s Send again: no monitor will run twice.")
        modeladmin.message_user(request, text % {"done": done, "count": count, "failure": sent.failure}, messages.ERROR)
        return _ask(modeladmin, request, asked, count)
    text = ngettext("%(count)d run was sent.", "%(count)d runs were sent.", done) % {"count": done}
    modeladmin.message_user(request, text, messages.SUCCESS)
    return None


def _ask(modeladmin: Any, request: HttpRequest, asked: Any, count: int) -> TemplateResponse:
    context = {
        "title": _("Run monitors now"),
        "count": count,
        "run_request": asked,
        "action_name": request.POST["action"],
        "selected": request.POST.getlist(ACTION_CHECKBOX_NAME),
        "select_across": request.POST.get("select_across", "0"),
    }
    return admin_page(modeladmin, request, "run", context)


def _ran(run_id: str) -> str:
    return _("Run now: %(run)s") % {"run": run_id}


def _stale() -> str:
    return _("The page was opened more than an hour ago, so nothing was sent. Please ask again from this one.")
