"""Filters of the admin's list of monitors. No filter runs a query whose cost grows with the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from django.contrib.admin import ListFilter, SimpleListFilter
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from django_wheelbeat.admin.known_tasks import values_in_use

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from django.http import HttpRequest

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS

INTERVAL_BANDS = {
    "seconds": (Q(interval_ms__lt=_MINUTE_MS), _("under a minute")),
    "minutes": (Q(interval_ms__gte=_MINUTE_MS, interval_ms__lt=_HOUR_MS), _("a minute to an hour")),
    "hours": (Q(interval_ms__gte=_HOUR_MS, interval_ms__lt=_DAY_MS), _("an hour to a day")),
    "days": (Q(interval_ms__gte=_DAY_MS), _("a day and more")),
}


class TextFilter(ListFilter):
    """A filter with a text input, for columns with too many values for a list of links."""

    template = "wheelbeat/text_filter.html"
    parameter_name = ""

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        self.within = model_admin.get_queryset(request)
        values = params.pop(self.parameter_name, None) or [""]
        self.text = values[-1].replace("\x00", "").strip()
        if self.text:
            self.used_parameters[self.parameter_name] = self.text

    def has_output(self) -> bool:
        """Return True; showing the filter needs no query."""
        return True

    def expected_parameters(self) -> list[str]:
        """Return the name of the query parameter."""
        return [self.parameter_name]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:  # noqa: ARG002 - Django's signature
        """Keep the rows that match the text."""
        return self.narrow(queryset, self.text) if self.text else queryset

    def narrow(self, queryset: Any, text: str) -> Any:
        """Keep the rows whose column is ``text``."""
        return queryset.filter(**{self.parameter_name: text})

    def offered(self) -> list[str]:
        """Return values for completion."""
        return []

    def choices(self, changelist: Any) -> Iterator[dict[str, Any]]:
        """Yield a single choice for the template: the text, its completions and the other parameters to keep."""
        kept = changelist.get_query_string(remove=[self.parameter_name, "p"])
        yield {
            "selected": bool(self.text),
            "query_string": kept,
            "parameter": self.parameter_name,
            "text": self.text,
            "offered": self.offered(),
            "kept": parse_qsl(kept.removeprefix("?"), keep_blank_values=True),
        }


class TaskFilter(TextFilter):
    """By exact task name."""

    title = _("task")
    parameter_name = "task"

    def offered(self) -> list[str]:
        """Offer the task names in use."""
        return values_in_use("task", limit=100, within=self.within)


class QueueFilter(TextFilter):
    """By exact queue."""

    title = _("queue")
    parameter_name = "queue"

    def offered(self) -> list[str]:
        """Offer the queues in use."""
        return values_in_use("queue", limit=100, within=self.within)


class TagFilter(TextFilter):
    """By one tag."""

    title = _("tag")
    parameter_name = "tag"

    def narrow(self, queryset: Any, text: str) -> Any:
        """Keep the monitors that carry the tag."""
        return queryset.tagged(text)


class ChoiceFilter(SimpleListFilter):
    """A filter with a few fixed choices; any other value, as from a mistyped URL, filters nothing."""

    options: Mapping[str, Any] = {}

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:  # noqa: ARG002
        """Return the choices with their labels."""
        return list(self.options.items())

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:  # noqa: ARG002 - Django's signature
        """Keep the rows of the choice."""
        chosen = self.value()
        return self.narrow(queryset, chosen) if chosen in self.options else queryset

    def narrow(self, queryset: Any, chosen: str) -> Any:
        """Keep the rows of ``chosen``, one of the keys of ``options``."""
        raise NotImplementedError


class KindFilter(ChoiceFilter):
    """By kind of schedule."""

    title = _("schedule")
    parameter_name = "kind"
    options = {"interval": _("interval"), "cron": _("cron"), "once": _("once"), "solar": _("solar")}

    def narrow(self, queryset: Any, chosen: str) -> Any:
        """Keep one kind."""
        return queryset.of_kind(chosen)


class IntervalBandFilter(ChoiceFilter):
    """By length of the interval, in bands."""

    title = _("interval")
    parameter_name = "band"
    options = {band: words for band, (_condition, words) in INTERVAL_BANDS.items()}

    def narrow(self, queryset: Any, chosen: str) -> Any:
        """Keep one band."""
        return queryset.filter(INTERVAL_BANDS[chosen][0])


class QuarantineFilter(ChoiceFilter):
    """By whether a beat has quarantined them."""

    title = _("quarantine")
    parameter_name = "quarantined"
    options = {"yes": _("in quarantine"), "no": _("not in quarantine")}

    def narrow(self, queryset: Any, chosen: str) -> Any:
        """Keep monitors inside or outside quarantine."""
        return queryset.quarantined() if chosen == "yes" else queryset.not_quarantined()


class IncidentFilter(ChoiceFilter):
    """By whether they have a running incident."""

    title = _("incident")
    parameter_name = "incident"
    options = {"now": _("in an incident now")}

    def narrow(self, queryset: Any, chosen: str) -> Any:  # noqa: ARG002 - there is one choice
        """Keep monitors with a running incident."""
        return queryset.in_incident(timezone.now())
