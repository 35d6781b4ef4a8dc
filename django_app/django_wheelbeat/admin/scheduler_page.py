"""The scheduler page: every beat, forecast, last hour, entries, and the monitors that fire at a given time.

Reads status rows, and monitors only for the last of these. Contacts no running process and changes nothing.
"""

from __future__ import annotations

from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from django import forms
from django.core.exceptions import PermissionDenied
from django.urls import path
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_GET

from django_wheelbeat.admin.beats import beat_reports
from django_wheelbeat.admin.charts import area, lines, peak_of
from django_wheelbeat.admin.firing import monitors_firing
from django_wheelbeat.admin.local_times import local_time
from django_wheelbeat.admin.pages import admin_page
from django_wheelbeat.monitors.columns import default_timezone
from django_wheelbeat.monitors.rows import aware, to_ms
from django_wheelbeat.monitors.settings import beat_settings
from django_wheelbeat.monitors.times import in_zone, now_ms

if TYPE_CHECKING:
    from django.http import HttpRequest
    from django.template.response import TemplateResponse
    from django.utils.safestring import SafeString

    from django_wheelbeat.admin.beats import BeatReport, Load

UPCOMING_MS = 60_000
SPANS_MS = {"second": 1_000, "minute": 60_000}
LAST_MS = 253_402_300_000_000
"""The year 9999."""


class FiringForm(forms.Form):
    """Asks for a time: which monitors fire then?"""

    at = forms.DateTimeField(
        label=gettext_lazy("At"),
        widget=forms.DateTimeInput({"type": "datetime-local", "step": "1"}, format="%Y-%m-%dT%H:%M:%S"),
        input_formats=[
            "%Y-%m-%dT%H:%M:%S",
            "%Y-%m-%dT%H:%M",
            "%Y-%m-%d %H:%M:%S",
            "%Y-%m-%d %H:%M",
        ],
    )
    span = forms.ChoiceField(
        label=gettext_lazy("within this"),
        choices=[
            ("second", gettext_lazy("second")),
            ("minute", gettext_lazy("minute")),
        ],
    )
    after = forms.IntegerField(required=False, widget=forms.HiddenInput)

    def span_ms(self) -> tuple[int, int]:
        """Return begin and end of the requested period in ms; the form must be valid."""
        length_ms = SPANS_MS[self.cleaned_data["span"]]
        begin_ms = to_ms(aware(self.cleaned_data["at"])) or 0
        begin_ms -= begin_ms % length_ms
        return begin_ms, begin_ms + length_ms


class UpcomingForm(forms.Form):
    """Monitors that fire within a minute from now; later pages keep the first page's instant."""

    since_ms = forms.IntegerField(required=False, min_value=0, max_value=LAST_MS)
    after = forms.IntegerField(required=False)

    def span_ms(self) -> tuple[int, int]:
        """See ``FiringForm``; begins now if no instant is given."""
        begin_ms = self.cleaned_data["since_ms"] or now_ms()
        return begin_ms, begin_ms + UPCOMING_MS


class Chart(NamedTuple):
    """A chart and its description in words."""

    title: str
    words: str
    picture: SafeString


class SchedulerPageMixin:
    """Adds the page to a ``ModelAdmin`` of monitors."""

    def get_urls(self) -> list[Any]:
        """Add the URL of the page."""
        view = self.admin_site.admin_view(require_GET(self.scheduler_view))
        return [path("scheduler/", view, name="wheelbeat_monitor_scheduler"), *super().get_urls()]

    def scheduler_view(self, request: HttpRequest) -> TemplateResponse:
        """Show the page."""
        if not self.has_scheduler_permission(request):
            raise PermissionDenied
        may_ask = self.has_view_permission(request)
        form = FiringForm(request.GET if "at" in request.GET and may_ask else None)
        question = UpcomingForm(request.GET) if "upcoming" in request.GET and may_ask else form
        context = {
            "title": _("Scheduler"),
            "reports": [(report, charts_of(report)) for report in beat_reports()],
            "zone": default_timezone(),
            "form": form if may_ask else None,
            **(self._firings(request, question) if question.is_valid() else {}),
        }
        return admin_page(self, request, "scheduler", context)

    def _firings(self, request: HttpRequest, form: FiringForm | UpcomingForm) -> dict[str, Any]:
        begin_ms, end_ms = form.span_ms()
        found = monitors_firing(
            self.get_queryset(request), begin_ms, end_ms, beat_settings(), form.cleaned_data["after"]
        )
        go_on = request.GET.copy()
        go_on["since_ms"] = str(begin_ms)
        go_on["after"] = "" if found.go_on_after is None else str(found.go_on_after)
        return {
            "asked": True,
            "begin": in_zone(begin_ms, default_timezone()),
            "firings": [
                (firing.monitor, local_time(firing.fire_ms, firing.monitor.timezone))
                for firing in sorted(found.firings, key=attrgetter("fire_ms"))
            ],
            "go_on": None if found.go_on_after is None else go_on.urlencode(),
        }


def charts_of(report: BeatReport) -> list[Chart]:
    """Return the charts of a beat's status document."""
    charts = []
    load = report.load
    if load is not None:
        charts.append(_load_chart(_("Runs per second, the next hour"), load, load.seconds, timedelta(seconds=1)))
        charts.append(_load_chart(_("Runs per minute, the next day"), load, load.minutes, timedelta(minutes=1)))
    minutes = report.status.get("minutes")
    if minutes:
        rates = [sent / 60 for _at_s, sent, _p50_s, _p99_s in minutes]
        words = _("%(now).1f runs per second in the last minute, at most %(most).1f.") % {
            "now": rates[-1],
            "most": max(rates),
        }
        charts.append(Chart(_("Runs sent per second, the last hour"), words, area(rates, words)))
        _ats, _sents, medians, worst = zip(*minutes, strict=True)
        words = _(
            "In the last minute, 50%% of the runs within %(p50).3f s, 99%% within %(p99).3f s, all within %(most).3f s."
        )
        words %= {"p50": medians[-1], "p99": worst[-1], "most": max(worst)}
        charts.append(Chart(_("Lateness, the last hour"), words, lines([worst, medians], words)))
    return charts


def _load_chart(title: str, load: Load, counts: Any, unit: timedelta) -> Chart:
    peak = peak_of(counts)
    if peak is None:
        words = _("Nothing is due.")
    else:
        at_ms = to_ms(load.begin + peak.index * unit) or 0
        words = _("The peak: %(runs)d runs at %(at)s; %(mean).1f on average.") % {
            "runs": peak.value,
            "at": in_zone(at_ms, default_timezone()),
            "mean": sum(counts) / len(counts),
        }
    return Chart(title, words, area(counts, f"{title}. {words}"))
