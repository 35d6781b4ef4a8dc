"""Bulk actions of the admin's list: pause, resume, edit, delete, start and end incidents. None is a toggle.

Each action first shows a page that asks for its values and names the number of monitors. Then it passes over them, one
bounded step per request; a progress page shows how many are done and requests the next step by itself.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.http import QueryDict
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, ngettext_lazy

from django_wheelbeat.admin import bulk_forms
from django_wheelbeat.admin.pages import admin_page
from django_wheelbeat.bulk import progress
from django_wheelbeat.bulk.dependents import forbidden_dependents

if TYPE_CHECKING:
    from django.http import HttpRequest
    from django.template.response import TemplateResponse

    from django_wheelbeat.admin.bulk_forms import OperationForm
    from django_wheelbeat.bulk.progress import BulkPass


class ActionTexts(NamedTuple):
    """Texts of an action, lazily translated; ``question`` and ``done`` contain ``%(count)d``."""

    title: Any
    button: Any
    question: Any
    done: Any


class BulkAction(NamedTuple):
    """One action: its form and its texts."""

    form: type[OperationForm]
    words: ActionTexts

    def run(self, modeladmin: Any, request: HttpRequest, queryset: Any) -> TemplateResponse | None:
        """Show the form, begin the pass, or continue it, depending on the request; None returns to the list."""
        scope = scope_of(request)
        bulk_pass = progress.read(request.POST.get("progress", ""), scope, request.user)
        if bulk_pass is not None:
            form = self.form(QueryDict(bulk_pass.given))
            if form.is_valid():
                return self._go_on(modeladmin, request, queryset, form, bulk_pass)
        monitors = self.form.concerned(queryset)
        total = monitors.order_by().values("pk").count()
        given = request.POST if "confirmed" in request.POST else None
        form = self.form(given, total=total, within=modeladmin.get_queryset(request))
        if not form.is_valid():
            return self._ask(modeladmin, request, form, total)
        bulk_pass = progress.begin(scope, request.user, monitors, total, form.carried().urlencode())
        return self._go_on(modeladmin, request, queryset, form, bulk_pass)

    def _go_on(
        self, modeladmin: Any, request: HttpRequest, queryset: Any, form: OperationForm, bulk_pass: BulkPass
    ) -> TemplateResponse | None:
        bulk_pass = progress.step(bulk_pass, self.form.concerned(queryset), form.operation(), request.user)
        if not bulk_pass.finished:
            return self._page(modeladmin, request, "progress", {"bulk_pass": bulk_pass, "title": self.words.title})
        modeladmin.message_user(request, self.words.done % {"count": bulk_pass.changed}, messages.SUCCESS)
        if bulk_pass.refused:
            modeladmin.message_user(request, refusals_in_words(bulk_pass), messages.WARNING)
        return None

    def _ask(self, modeladmin: Any, request: HttpRequest, form: OperationForm, total: int) -> TemplateResponse:
        context = {
            "title": self.words.title,
            "form": form,
            "question": self.words.question % {"count": total},
            "button": self.words.button,
        }
        return self._page(modeladmin, request, "ask", context)

    def _page(self, modeladmin: Any, request: HttpRequest, name: str, context: dict[str, Any]) -> TemplateResponse:
        return admin_page(modeladmin, request, name, asked_again(request) | context)


def asked_again(request: HttpRequest) -> dict[str, Any]:
    """Return the values that the action's form must submit again: the action and the selected monitors."""
    return {
        "action_name": request.POST["action"],
        "selected": request.POST.getlist(ACTION_CHECKBOX_NAME),
        "select_across": request.POST.get("select_across", "0"),
    }


def scope_of(request: HttpRequest) -> str:
    """Return a digest of action, filter and selection; a confirmation is valid for one digest only."""
    across = request.POST.get("select_across", "0")
    chosen = [] if across == "1" else sorted(request.POST.getlist(ACTION_CHECKBOX_NAME))
    text = "\n".join([request.POST["action"], across, request.GET.urlencode(), *chosen])
    return sha256(text.encode()).hexdigest()[:32]


def refusals_in_words(bulk_pass: BulkPass) -> str:
    """Return the number of monitors that were not changed, and the first of them with reasons."""
    text = ngettext(
        "%(count)d monitor was not changed: %(named)s",
        "%(count)d monitors were not changed: %(named)s",
        bulk_pass.refused,
    )
    named = "; ".join(f"{name}: {reason}" for name, reason in bulk_pass.refusals)
    more = "; …" if bulk_pass.refused > len(bulk_pass.refusals) else ""
    return text % {"count": bulk_pass.refused, "named": named + more}


PAUSE = BulkAction(
    bulk_forms.PauseForm,
    ActionTexts(
        gettext_lazy("Pause monitors"),
        gettext_lazy("Pause"),
        ngettext_lazy(
            "%(count)d enabled monitor will be paused.", "%(count)d enabled monitors will be paused.", "count"
        ),
        ngettext_lazy("%(count)d monitor was paused.", "%(count)d monitors were paused.", "count"),
    ),
)
RESUME = BulkAction(
    bulk_forms.ResumeForm,
    ActionTexts(
        gettext_lazy("Resume monitors"),
        gettext_lazy("Resume"),
        ngettext_lazy(
            "%(count)d paused monitor will be resumed.", "%(count)d paused monitors will be resumed.", "count"
        ),
        ngettext_lazy("%(count)d monitor was resumed.", "%(count)d monitors were resumed.", "count"),
    ),
)
EDIT = BulkAction(
    bulk_forms.EditForm,
    ActionTexts(
        gettext_lazy("Edit monitors"),
        gettext_lazy("Change"),
        ngettext_lazy("%(count)d monitor will be changed.", "%(count)d monitors will be changed.", "count"),
        ngettext_lazy("%(count)d monitor was changed.", "%(count)d monitors were changed.", "count"),
    ),
)
DELETE = BulkAction(
    bulk_forms.DeleteForm,
    ActionTexts(
        gettext_lazy("Delete monitors"),
        gettext_lazy("Delete"),
        ngettext_lazy(
            "%(count)d monitor will be deleted. This cannot be undone.",
            "%(count)d monitors will be deleted. This cannot be undone.",
            "count",
        ),
        ngettext_lazy("%(count)d monitor was deleted.", "%(count)d monitors were deleted.", "count"),
    ),
)
SPEED_UP = BulkAction(
    bulk_forms.SpeedUpForm,
    ActionTexts(
        gettext_lazy("Start an incident"),
        gettext_lazy("Speed up"),
        ngettext_lazy(
            "Of %(count)d monitor, those with a slower interval or a cron expression will be sped up.",
            "Of %(count)d monitors, those with a slower interval or a cron expression will be sped up.",
            "count",
        ),
        ngettext_lazy("%(count)d monitor was sped up.", "%(count)d monitors were sped up.", "count"),
    ),
)
END_INCIDENT = BulkAction(
    bulk_forms.EndIncidentForm,
    ActionTexts(
        gettext_lazy("End incidents"),
        gettext_lazy("End"),
        ngettext_lazy("%(count)d incident will be ended.", "%(count)d incidents will be ended.", "count"),
        ngettext_lazy("%(count)d incident was ended.", "%(count)d incidents were ended.", "count"),
    ),
)


@admin.action(permissions=["pause"], description=gettext_lazy("Pause selected monitors…"))
def pause_monitors(modeladmin: Any, request: HttpRequest, queryset: Any) -> TemplateResponse | None:
    """Ask for the reason, then disable every enabled monitor of the selection."""
    return PAUSE.run(modeladmin, request, queryset)


@admin.action(permissions=["pause"], description=gettext_lazy("Resume selected monitors…"))
def resume_monitors(modeladmin: Any, request: HttpRequest, queryset: Any) -> TemplateResponse | None:
    """Show the number, then enable every disabled monitor of the selection."""
    return RESUME.run(modeladmin, request, queryset)


@admin.action(permissions=["change"], description=gettext_lazy("Edit selected monitors…"))
def edit_monitors(modeladmin: Any, request: HttpRequest, queryset: Any) -> TemplateResponse | None:
    """Ask for new values, then set them in every monitor that can run with them."""
    return EDIT.run(modeladmin, request, queryset)


@admin.action(permissions=["delete"], description=gettext_lazy("Delete selected monitors…"))
def delete_selected(modeladmin: Any, request: HttpRequest, queryset: Any) -> TemplateResponse | None:
    """Ask for the exact number, then delete. Replaces Django's own action, which loads every row into memory."""
    forbidden = forbidden_dependents(modeladmin, request, queryset)
    if forbidden:
        text = _("Nothing was deleted: this would also delete related objects that you may not delete (%(names)s).")
        modeladmin.message_user(request, text % {"names": ", ".join(forbidden)}, messages.ERROR)
        return None
    return DELETE.run(modeladmin, request, queryset)


@admin.action(permissions=["change"], description=gettext_lazy("Start an incident for selected monitors…"))
def speed_up_monitors(modeladmin: Any, request: HttpRequest, queryset: Any) -> TemplateResponse | None:
    """Ask for interval and duration, then start the incident."""
    return SPEED_UP.run(modeladmin, request, queryset)


@admin.action(permissions=["change"], description=gettext_lazy("End the incident of selected monitors…"))
def end_incidents(modeladmin: Any, request: HttpRequest, queryset: Any) -> TemplateResponse | None:
    """Show the number, then return to the base schedules immediately."""
    return END_INCIDENT.run(modeladmin, request, queryset)
