"""Parts of admin pages that every wheelbeat page shows."""

from __future__ import annotations

from typing import Any

from django import template

from django_wheelbeat.banner import beat_silence

register = template.Library()


@register.inclusion_tag("wheelbeat/banner.html")
def wheelbeat_banner() -> dict[str, Any]:
    """Show a banner while no beat reports."""
    return {"silence": beat_silence()}
