"""The page of one-off runs: how many are due when, which they are, and actions to cancel and move them.

A page costs a fixed number of statements, each of which reads a bounded number of rows, however many runs there are.
A GET changes nothing.
"""

from __future__ import annotations

from datetime import datetime, time, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpResponseRedirect
from django.urls import path
from django.utils import formats, timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_http_methods

from celery_wheelbeat.errors import WheelbeatError
from celery_wheelbeat.later import ahead
from celery_wheelbeat.later.connections import caller_of
from celery_wheelbeat.later.opening import application_connection
from celery_wheelbeat.later.ring import LAST_MS
from celery_wheelbeat.later.writers import writer_of
from django_wheelbeat.admin.actions import asked_again
from django_wheelbeat.admin.bulk_forms import ReasonField
from django_wheelbeat.admin.charts import area
from django_wheelbeat.admin.local_times import local_time, site_zone
from django_wheelbeat.admin.pages import admin_page
from django_wheelbeat.bulk.one_off_runs import RunChange, change_runs
from django_wheelbeat.database.opening import monitor_alias
from django_wheelbeat.monitors.form_fields import DurationField
from django_wheelbeat.monitors.rows import to_ms
from django_wheelbeat.monitors.times import in_zone, now_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.http import HttpRequest, HttpResponse
    from django.template.response import TemplateResponse
    from django.utils.safestring import SafeString

    from celery_wheelbeat.later.connections import Caller

ROWS = 100
MINUTES = 60
DAYS = 31
LAST_S = LAST_MS // 1000
_INSTANT = {
    "widget": forms.DateTimeInput({"type": "datetime-local", "step": "1"}, format="%Y-%m-%dT%H:%M:%S"),
    "input_formats": ["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M"],
}


class SearchForm(forms.Form):
    """Which runs are listed."""

    by = forms.ChoiceField(
        label=gettext_lazy("Search by"),
        required=False,
        choices=[("task", gettext_lazy("task")), ("key", gettext_lazy("key")), ("id", gettext_lazy("run id"))],
    )
    text = forms.CharField(label=gettext_lazy("whole text"), required=False, max_length=255)
    start = forms.DateTimeField(label=gettext_lazy("due from"), required=False, **_INSTANT)


class CancelForm(forms.Form):
    """Why runs are cancelled."""

    reason = ReasonField(required=False)

    def change(self) -> RunChange:
        """Return what is done; the form must be valid."""
        return RunChange()


class MoveForm(forms.Form):
    """Where runs are moved, and why."""

    at = forms.DateTimeField(label=gettext_lazy("To"), required=False, **_INSTANT)
    by = DurationField(
        label=gettext_lazy("or later by"), required=False, help_text=gettext_lazy("A duration, such as 90s, 5m or 1h.")
    )
    reason = ReasonField(required=False)

    def clean(self) -> None:
        """Expect an instant or a span."""
        at, by = self.cleaned_data.get("at"), self.cleaned_data.get("by")
        if not self.errors and (at is None) == (by is None):
            raise ValidationError(_("Expected either an instant or a duration."), "either")

    def change(self) -> RunChange:
        """Return what is done; the form must be valid."""
        return RunChange(to_ms(self.cleaned_data["at"]), self.cleaned_data["by"])


class RunAction(NamedTuple):
    """What can be done with the selected runs."""

    form: type[CancelForm | MoveForm]
    label: Any
    button: Any


ACTIONS = {
    "cancel": RunAction(CancelForm, gettext_lazy("Cancel selected runs…"), gettext_lazy("Cancel the runs")),
    "move": RunAction(MoveForm, gettext_lazy("Move selected runs…"), gettext_lazy("Move the runs")),
}
"""Name → action; the permission is ``<name>_oneoffrun``."""


class Forecast(NamedTuple):
    """Runs by period: a chart, its words, and the numbers."""

    title: str
    words: str
    picture: SafeString
    numbers: Sequence[tuple[str, str]]


class OneOffRunsPageMixin:
    """Adds the page to a ``ModelAdmin`` of monitors."""

    def get_urls(self) -> list[Any]:
        """Add the URL of the page."""
        view = self.admin_site.admin_view(require_http_methods(["GET", "POST"])(self.one_off_runs_view))
        return [path("one-off-runs/", view, name="wheelbeat_monitor_one_off_runs"), *super().get_urls()]

    def one_off_runs_view(self, request: HttpRequest) -> HttpResponse:
        """Show the page, ask about an action, or carry it out."""
        if not self.has_one_off_runs_permission(request):
            raise PermissionDenied
        if request.method == "POST":
            return self._act(request)
        form = SearchForm(request.GET)
        context: dict[str, Any] = {"title": _("One-off runs"), "form": form, "zone": site_zone()}
        try:
            with application_connection(monitor_alias()) as connection:
                caller = caller_of(connection)
                context |= {"forecasts": forecasts(caller, now_ms() // 1000), **_listed(caller, request, form)}
        except WheelbeatError as problem:
            context["problem"] = str(problem)
        context["actions"] = [
            (name, action.label) for name, action in ACTIONS.items() if self.has_run_action_permission(request, name)
        ]
        return admin_page(self, request, "one_off_runs", context)

    def _act(self, request: HttpRequest) -> HttpResponse:
        action = ACTIONS.get(request.POST.get("action", ""))
        if action is None or not self.has_run_action_permission(request, request.POST["action"]):
            raise PermissionDenied
        chosen = request.POST.getlist(ACTION_CHECKBOX_NAME)[:ROWS]
        here = HttpResponseRedirect(request.get_full_path())
        if not chosen:
            self.message_user(request, _("No runs were selected."), messages.WARNING)
            return here
        form = action.form(request.POST if "confirmed" in request.POST else None)
        if not form.is_valid():
            return self._ask(request, action, form, len(chosen))
        change = form.change()
        try:
            done = change_runs(monitor_alias(), chosen, change, request.user, form.cleaned_data["reason"])
        except WheelbeatError as problem:
            self.message_user(request, str(problem), messages.ERROR)
            return here
        if done.changed:
            text = (
                ngettext("%(count)d run was cancelled.", "%(count)d runs were cancelled.", done.changed)
                if change.cancels
                else ngettext("%(count)d run was moved.", "%(count)d runs were moved.", done.changed)
            )
            self.message_user(request, text % {"count": done.changed}, messages.SUCCESS)
        if done.kept:
            text = ngettext(
                "%(count)d run was not changed: it is due within two seconds, was sent, or was changed before.",
                "%(count)d runs were not changed: they are due within two seconds, were sent, or were changed before.",
                done.kept,
            )
            self.message_user(request, text % {"count": done.kept}, messages.WARNING)
        return here

    def _ask(self, request: HttpRequest, action: RunAction, form: forms.Form, count: int) -> TemplateResponse:
        question = ngettext("%(count)d run is selected.", "%(count)d runs are selected.", count) % {"count": count}
        context = {
            "title": action.button,
            "question": question,
            "form": form,
            "button": action.button,
            **asked_again(request),
        }
        return admin_page(self, request, "ask", context)


def _listed(caller: Caller, request: HttpRequest, form: SearchForm) -> dict[str, Any]:
    """Return rows, each with its due time as an element, and the query of what follows."""
    if not form.is_valid():
        return {}
    given = form.cleaned_data
    text, go_on = given["text"], None
    if text and given["by"] in ("id", "key"):
        writer = writer_of(caller)
        by_id = given["by"] == "id"
        found = writer.of_id(text.lower(), lock=False) if by_id else writer.of_key(text, lock=False)
        rows = [found] if found else []
    else:
        from_s = now_ms() // 1000 if given["start"] is None else (to_ms(given["start"]) or 0) // 1000
        page = ahead.search(caller, ahead.Search(min(max(0, from_s), LAST_S - 1), LAST_S, ROWS, text or None))
        rows = list(page.rows)
        if page.go_on_s is not None:
            query = request.GET.copy()
            query["start"] = f"{_local(page.go_on_s):%Y-%m-%dT%H:%M:%S}"
            go_on = query.urlencode()
    return {"rows": [(row, local_time(row.run.at_ms, site_zone())) for row in rows], "go_on": go_on}


def forecasts(caller: Caller, now_s: int) -> list[Forecast]:
    """Return runs by minute of the next hour, and by day of the next month with what is beyond."""
    minute = now_s // 60 * 60
    minutes = _periods([now_s, *(minute + 60 * n for n in range(1, MINUTES)), now_s + 60 * MINUTES])
    days = _periods([now_s, *_midnights(now_s)])
    last = [ahead.Period(days[-1].until_s, LAST_S)]
    zone = site_zone()
    names = [in_zone(period.from_s * 1000, zone) for period in minutes]
    by_minute = ahead.counts(caller, minutes)
    by_day = [ahead.counts(caller, days), ahead.counts(caller, last)]
    dates = [formats.date_format(_local(period.from_s), "DATE_FORMAT") for period in days]
    return [
        _forecast(_("One-off runs by minute, the next hour"), names, by_minute),
        _forecast(_("One-off runs by day, the next month"), dates, by_day[0], (_("after that"), by_day[1][0])),
    ]


def _forecast(
    title: str, names: Sequence[str], counts: Sequence[ahead.Count], rest: tuple[str, ahead.Count] | None = None
) -> Forecast:
    runs = [count.runs for count in counts]
    most = max(runs)
    if most:
        words = _("%(sum)s in all, at most %(most)s: %(when)s.") % {
            "sum": in_words(total(counts)),
            "most": in_words(counts[runs.index(most)]),
            "when": names[runs.index(most)],
        }
    else:
        words = _("Nothing is due.")
    numbers = [(name, in_words(count)) for name, count in zip(names, counts, strict=True)]
    if rest is not None:
        numbers.append((rest[0], in_words(rest[1])))
    return Forecast(title, words, area(runs, f"{title}. {words}"), numbers)


def total(counts: Sequence[ahead.Count]) -> ahead.Count:
    """Return the sum, as precise as its least precise part."""
    kinds = {count.precision for count in counts}
    worst = next(
        kind for kind in (ahead.Precision.AT_LEAST, ahead.Precision.ESTIMATE, ahead.Precision.EXACT) if kind in kinds
    )
    return ahead.Count(sum(count.runs for count in counts), worst)


def in_words(count: ahead.Count) -> str:
    """Return a count with its precision."""
    number = formats.number_format(count.runs, use_l10n=True, force_grouping=True)
    if count.precision is ahead.Precision.ESTIMATE:
        return _("about %(number)s") % {"number": number}
    return _("at least %(number)s") % {"number": number} if count.precision is ahead.Precision.AT_LEAST else number


def _periods(bounds: Sequence[int]) -> list[ahead.Period]:
    return [ahead.Period(*pair) for pair in pairwise(bounds)]


def _local(second: int) -> datetime:
    return datetime.fromtimestamp(second, timezone.get_current_timezone())


def _midnights(now_s: int) -> list[int]:
    """Return the next DAYS midnights in the site's zone, as unix seconds."""
    today = _local(now_s).date()
    zone = timezone.get_current_timezone()
    return [int(datetime.combine(today + timedelta(days=day), time(), zone).timestamp()) for day in range(1, DAYS + 1)]
