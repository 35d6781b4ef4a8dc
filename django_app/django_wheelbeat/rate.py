"""How often somebody may ask, counted in Django's cache: per process with the default cache, else for all of them."""

from __future__ import annotations

from django.core.cache import cache

KEPT_S = 5


def allowed(who: str, most: int, now_s: int) -> bool:
    """Count one request of ``who`` in the second ``now_s``; whether it is one of the first ``most``."""
    key = f"wheelbeat.rate.{who}.{now_s}"
    cache.add(key, 0, KEPT_S)
    try:
        return cache.incr(key) <= most
    except ValueError:  # a cache that keeps nothing counts nothing
        return True
