"""Changes to many monitors in chunks: each one short transaction, so neither locks nor memory grow with the number.

A chunk that is committed stays committed when a later one fails: what was done is reported, never rolled back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.admin.models import CHANGE, LogEntry

from django_wheelbeat.actors import acting
from django_wheelbeat.chunks import chunks_of_ids

if TYPE_CHECKING:
    from collections.abc import Callable


def change_in_chunks(queryset: Any, change: Callable[[Any], int], user: Any, *, reason: str, message: str) -> int:
    """Apply ``change`` to every monitor of ``queryset`` and return how many rows it changed.

    ``change`` takes a queryset of one chunk and returns a number of rows. ``user`` and ``reason`` go into the change
    log, ``message`` into Django's history of each monitor.
    """
    monitors = queryset.model._default_manager.using(queryset.db)
    changed = 0
    for ids in chunks_of_ids(queryset):
        chunk = monitors.filter(pk__in=ids)
        with acting(user.get_username(), reason, using=queryset.db):
            changed += change(chunk)
            LogEntry.objects.log_actions(user.pk, list(chunk.only("pk", "name")), CHANGE, change_message=message)
    return changed
