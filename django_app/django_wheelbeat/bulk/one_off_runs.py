"""Cancel and move one-off runs in the admin, with an entry in the audit and in Django's history.

The store keeps no trace of who changed a run, so both entries are written in the transaction of the change.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import transaction
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from celery_wheelbeat import later
from celery_wheelbeat.later.ring import LAST_MS
from django_wheelbeat.models import Audit, AuditedOperation, Monitor
from django_wheelbeat.monitors.rows import to_datetime
from django_wheelbeat.monitors.settings import beat_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

AUDITED_MAX = 100
"""Runs of one request that the audit names."""


class RunChange(NamedTuple):
    """What is done with the runs: cancelled, or moved to ``at_ms`` or by ``by_ms``."""

    at_ms: int | None = None
    by_ms: int | None = None

    @property
    def cancels(self) -> bool:
        """Whether runs are cancelled."""
        return self.at_ms is None and self.by_ms is None


class ChangedRuns(NamedTuple):
    """What became of the runs."""

    changed: int
    """In force when the transaction commits."""
    kept: int
    """Due within two seconds, sent, cancelled before, or unknown."""


def change_runs(using: str, run_ids: Sequence[str], change: RunChange, user: Any, reason: str) -> ChangedRuns:
    """Cancel or move each of ``run_ids`` in database ``using``, in one transaction."""
    with transaction.atomic(using=using):
        done: dict[str, Any] = {}
        for run_id in run_ids:
            found = later.pending(id=run_id, using=using)
            if found is None:
                continue
            if change.cancels:
                if later.cancel(id=run_id, using=using) is later.Cancelled.CANCELLED:
                    done[run_id] = [found.at.isoformat(), None]
                continue
            at_ms = min(found.at_ms + (change.by_ms or 0), LAST_MS) if change.at_ms is None else change.at_ms
            moved = later.move(to_datetime(at_ms), id=run_id, using=using)
            if moved is not None:
                done[run_id] = [found.at.isoformat(), f"{to_datetime(at_ms).isoformat()} {moved}"]
        if done:
            _note(using, done, change, user, reason)
    return ChangedRuns(len(done), len(run_ids) - len(done))


def _note(using: str, done: Mapping[str, Any], change: RunChange, user: Any, reason: str) -> None:
    mode = beat_settings().audit
    if mode != "off":
        named = dict(list(done.items())[:AUDITED_MAX]) if mode == "full" else {}
        Audit.objects.using(using).create(
            operation=AuditedOperation.CANCEL if change.cancels else AuditedOperation.MOVE,
            monitors=0,
            changes=json.dumps({"one-off runs": len(done), **named}),
            actor=user.get_username(),
            reason=reason,
        )
    first = next(iter(done))
    text = ngettext("%(count)d one-off run", "%(count)d one-off runs", len(done)) % {"count": len(done)}
    LogEntry.objects.create(
        user_id=user.pk,
        content_type=ContentType.objects.get_for_model(Monitor),
        object_repr=f"{text}: {first}"[:200],
        action_flag=CHANGE,
        change_message=f"{_('Cancelled.') if change.cancels else _('Moved.')} {reason}".strip(),
    )
