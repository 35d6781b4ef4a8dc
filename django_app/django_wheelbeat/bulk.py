"""Changes to many monitors, a chunk at a time: each one short transaction, so neither locks nor memory grow with the
number.

A chunk that is committed stays committed when a later one fails: what was done is reported, never rolled back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from django.contrib.admin.models import LogEntry

from django_wheelbeat.actors import acting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_wheelbeat.models import Monitor


class Outcome(NamedTuple):
    """What came of one chunk."""

    changed: Sequence[Monitor]
    refused: dict[str, str]
    """Name → why it was left as it is."""


class Operation(Protocol):
    """What is done to each monitor, and how it is called in the histories."""

    flag: int
    """Of Django's ``LogEntry``."""
    reason: str
    """Kept in the change log."""
    message: str
    """Kept in Django's history of each monitor."""

    def apply(self, chunk: Any) -> Outcome:
        """Change those of ``chunk``, a queryset of a few thousand, that need it; called inside a transaction."""


def change_chunk(monitors: Any, ids: Sequence[int], operation: Operation, user: Any) -> Outcome:
    """Apply ``operation`` to the monitors ``ids`` of queryset ``monitors`` in one transaction, as ``user``."""
    with acting(user.get_username(), operation.reason, using=monitors.db):
        outcome = operation.apply(monitors.filter(pk__in=ids))
        if outcome.changed:
            LogEntry.objects.log_actions(user.pk, outcome.changed, operation.flag, change_message=operation.message)
    return outcome
