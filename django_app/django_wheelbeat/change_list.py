"""The list of monitors: what one page of it reads, and how its rows are shown."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.views.main import ChangeList

TEXTS = ("args", "kwargs", "headers", "options", "description")
"""Columns that can be large; no list reads them."""


class MonitorChangeList(ChangeList):
    """Reads the rows of a page with the reasons of their quarantine in one query."""

    def get_queryset(self, request: Any, exclude_parameters: Any = None) -> Any:
        """Narrow by search and filters as Django does; leave the texts behind."""
        return super().get_queryset(request, exclude_parameters).defer(*TEXTS).with_quarantine()
