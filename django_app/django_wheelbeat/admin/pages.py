"""Shared by the admin's own pages: rendering, rate limit and permissions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.cache import cache
from django.template.response import TemplateResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.http import HttpRequest


PREVIEW_WINDOW_S = 5


def admin_page(modeladmin: Any, request: HttpRequest, name: str, context: Mapping[str, Any]) -> TemplateResponse:
    """Render ``admin/wheelbeat/monitor/<name>.html``; links stay within the admin site of ``modeladmin``."""
    request.current_app = modeladmin.admin_site.name
    common = {
        **modeladmin.admin_site.each_context(request),
        "opts": modeladmin.opts,
        "media": modeladmin.media,
    }
    return TemplateResponse(request, f"admin/wheelbeat/monitor/{name}.html", common | dict(context))


def allowed(who: str, most: int, now_s: int) -> bool:
    """Count one request of ``who`` in second ``now_s``; return whether it is among the first ``most``."""
    key = f"wheelbeat.rate.{who}.{now_s}"
    cache.add(key, 0, PREVIEW_WINDOW_S)
    try:
        return cache.incr(key) <= most
    except ValueError:  # a dummy cache does not count
        return True


class MonitorPermissions:
    """Permission methods of a ``ModelAdmin`` of monitors and its actions."""

    def has_pause_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether the user may pause and resume."""
        return self._has(request, "pause_monitor") or self.has_change_permission(request, obj)

    def has_import_permission(self, request: HttpRequest) -> bool:
        """Whether the user may import; needs add and change permission, too, because an import does both."""
        may_edit = self.has_add_permission(request) and self.has_change_permission(request)
        return may_edit and self._has(request, "import_monitor")

    def has_scheduler_permission(self, request: HttpRequest) -> bool:
        """Whether the user may see the scheduler page."""
        return self._has(request, "view_scheduler")

    def has_one_off_runs_permission(self, request: HttpRequest) -> bool:
        """Whether the user may see the page of one-off runs, with their arguments."""
        return self._has(request, "view_oneoffrun")

    def has_run_action_permission(self, request: HttpRequest, action: str) -> bool:
        """Whether the user may ``cancel`` or ``move`` one-off runs."""
        return self._has(request, f"{action}_oneoffrun")

    def _has(self, request: HttpRequest, codename: str) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.{codename}")
