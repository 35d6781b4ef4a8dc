"""Pages of the admin beside Django's own: what all of them hand to their templates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.cache import cache
from django.template.response import TemplateResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.http import HttpRequest


def admin_page(modeladmin: Any, request: HttpRequest, name: str, context: Mapping[str, Any]) -> TemplateResponse:
    """Render ``admin/wheelbeat/monitor/<name>.html``; its links stay within the site that ``modeladmin`` belongs to."""
    request.current_app = modeladmin.admin_site.name
    common = {
        **modeladmin.admin_site.each_context(request),
        "opts": modeladmin.opts,
        "media": modeladmin.media,
    }
    return TemplateResponse(request, f"admin/wheelbeat/monitor/{name}.html", common | dict(context))


KEPT_S = 5


def allowed(who: str, most: int, now_s: int) -> bool:
    """Count one request of ``who`` in the second ``now_s``; whether it is one of the first ``most``."""
    key = f"wheelbeat.rate.{who}.{now_s}"
    cache.add(key, 0, KEPT_S)
    try:
        return cache.incr(key) <= most
    except ValueError:  # a cache that keeps nothing counts nothing
        return True


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
