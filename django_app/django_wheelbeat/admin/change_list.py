"""Change lists of monitors and of the quarantine: the queries of one page."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.views.main import ChangeList

from django_wheelbeat.active_periods import active_periods_of
from django_wheelbeat.admin.preview import last_fire_ms, next_fire_ms
from django_wheelbeat.monitors.rows import row_of
from django_wheelbeat.monitors.settings import beat_settings
from django_wheelbeat.monitors.times import now_ms

TEXTS = ("args", "kwargs", "headers", "options", "description")
"""Columns that can be large; lists defer them."""


class MonitorChangeList(ChangeList):
    """Reads the rows of a page, with their quarantine reasons, in one query."""

    def get_queryset(self, request: Any, exclude_parameters: Any = None) -> Any:
        """Return Django's filtered queryset, with TEXTS deferred."""
        return super().get_queryset(request, exclude_parameters).defer(*TEXTS).with_quarantine()

    def get_results(self, request: Any) -> None:
        """Read the page and compute its next and last fire times, all as of the same instant.

        Without search and filters, "results" and "all" are the same number and only one is shown.
        """
        super().get_results(request)
        if not self.query and not self.has_active_filters:
            self.full_result_count = self.result_count
        settings, instant_ms = beat_settings(), now_ms()
        for monitor in self.result_list:
            row = row_of(monitor)
            quarantined = monitor.quarantine_reason is not None
            monitor.next_fire_ms = None if quarantined else next_fire_ms(row, instant_ms, settings)
            monitor.last_fire_ms = last_fire_ms(row, active_periods_of(monitor, instant_ms), settings)


class QuarantineChangeList(ChangeList):
    """Reads the names of the monitors of a page in one query."""

    def get_results(self, request: Any) -> None:
        """Read the page and the names of the monitors that the user may see."""
        super().get_results(request)
        self.model_admin.read_names(request, self.result_list)
