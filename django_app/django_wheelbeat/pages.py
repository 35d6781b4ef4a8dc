"""Pages of the admin beside Django's own: what all of them hand to their templates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
