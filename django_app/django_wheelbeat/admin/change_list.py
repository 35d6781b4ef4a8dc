"""The lists of monitors and of the quarantine: what one page of them reads."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.views.main import ChangeList

from django_wheelbeat.admin.preview import last_fire_ms, next_fire_ms
from django_wheelbeat.monitors.rows import row_of
from django_wheelbeat.monitors.settings import beat_settings
from django_wheelbeat.monitors.times import now_ms
from django_wheelbeat.stretches import stretches_of

TEXTS = ("args", "kwargs", "headers", "options", "description")
"""Columns that can be large; no list reads them."""


class MonitorChangeList(ChangeList):
    """Reads the rows of a page with the reasons of their quarantine in one query."""

    def get_queryset(self, request: Any, exclude_parameters: Any = None) -> Any:
        """Narrow by search and filters as Django does; leave the texts behind."""
        return super().get_queryset(request, exclude_parameters).defer(*TEXTS).with_quarantine()

    def get_results(self, request: Any) -> None:
        """Read the page, and compute its next and last fire times as of one instant.

        Where nothing is narrowed, "results" and "all" are one number and need not both be shown.
        """
        super().get_results(request)
        if not self.query and not self.has_active_filters:
            self.full_result_count = self.result_count
        settings, instant_ms = beat_settings(), now_ms()
        for monitor in self.result_list:
            row = row_of(monitor)
            quarantined = monitor.quarantine_reason is not None
            monitor.next_fire_ms = None if quarantined else next_fire_ms(row, instant_ms, settings)
            monitor.last_fire_ms = last_fire_ms(row, stretches_of(monitor, instant_ms), settings)


class QuarantineChangeList(ChangeList):
    """Reads the names of a page's monitors in one query."""

    def get_results(self, request: Any) -> None:
        """Read the page, and the names of those monitors that the user may see."""
        super().get_results(request)
        self.model_admin.read_names(request, self.result_list)
