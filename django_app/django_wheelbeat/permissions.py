"""Who may do what with monitors beyond Django's view, add, change and delete.

``run_monitor``: run now (``run_admin``). ``pause_monitor``: pause and resume, for people on call who may not edit;
who may change may pause. ``import_monitor``: import files, which adds and changes, so both are needed beside it.
``view_scheduler``: the page of the beats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django.http import HttpRequest


class MonitorPermissions:
    """What a ``ModelAdmin`` of monitors and its actions ask."""

    def has_pause_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether the user may pause and resume."""
        return self._has(request, "pause_monitor") or self.has_change_permission(request, obj)

    def has_import_permission(self, request: HttpRequest) -> bool:
        """Whether the user may import: an import adds monitors and changes those that exist."""
        may_edit = self.has_add_permission(request) and self.has_change_permission(request)
        return may_edit and self._has(request, "import_monitor")

    def has_scheduler_permission(self, request: HttpRequest) -> bool:
        """Whether the user may see the page of the beats."""
        return self._has(request, "view_scheduler")

    def _has(self, request: HttpRequest, codename: str) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.{codename}")
