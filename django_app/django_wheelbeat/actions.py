"""Bulk actions of the admin's list: pause with a reason, resume. Two actions, never a toggle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_wheelbeat.bulk import change_in_chunks
from django_wheelbeat.forms import PauseForm

if TYPE_CHECKING:
    from django.http import HttpRequest


@admin.action(permissions=["change"], description=gettext_lazy("Pause selected monitors…"))
def pause_monitors(modeladmin: Any, request: HttpRequest, queryset: Any) -> TemplateResponse | None:
    """Ask for the reason on a page of its own, then disable every enabled monitor of the selection."""
    eligible = queryset.filter(enabled=True)
    form = PauseForm(request.POST) if "pause" in request.POST else PauseForm()
    if not form.is_valid():
        return _ask_for_reason(modeladmin, request, form, eligible.count())
    reason = form.cleaned_data["reason"]
    paused = change_in_chunks(
        eligible,
        lambda chunk: chunk.pause(reason),
        request.user,
        reason=reason,
        message=_("Paused: %(reason)s") % {"reason": reason},
    )
    text = ngettext("%(count)d monitor was paused.", "%(count)d monitors were paused.", paused) % {"count": paused}
    modeladmin.message_user(request, text, messages.SUCCESS)
    return None


@admin.action(permissions=["change"], description=gettext_lazy("Resume selected monitors"))
def resume_monitors(modeladmin: Any, request: HttpRequest, queryset: Any) -> None:
    """Enable every disabled monitor of the selection."""
    resumed = change_in_chunks(
        queryset.filter(enabled=False), lambda chunk: chunk.resume(), request.user, reason="", message=_("Resumed.")
    )
    text = ngettext("%(count)d monitor was resumed.", "%(count)d monitors were resumed.", resumed) % {"count": resumed}
    modeladmin.message_user(request, text, messages.SUCCESS)


def _ask_for_reason(modeladmin: Any, request: HttpRequest, form: PauseForm, count: int) -> TemplateResponse:
    context = {
        **modeladmin.admin_site.each_context(request),
        "title": _("Pause monitors"),
        "opts": modeladmin.opts,
        "media": modeladmin.media + form.media,
        "form": form,
        "count": count,
        "action_name": request.POST["action"],
        "selected": request.POST.getlist(ACTION_CHECKBOX_NAME),
        "select_across": request.POST.get("select_across", "0"),
    }
    return TemplateResponse(request, "admin/wheelbeat/monitor/pause.html", context)
