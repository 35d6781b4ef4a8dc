"""Revoke tasks that are still in the store: they are cancelled there, and their results say so."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from celery.app.task import Context

from celery_wheelbeat.errors import reason_of
from celery_wheelbeat.later.connections import caller_of
from celery_wheelbeat.later.drop_in.routing import key_of
from celery_wheelbeat.later.opening import application_connection
from celery_wheelbeat.later.writers import writer_of

if TYPE_CHECKING:
    from celery_wheelbeat.later.run import LaterRun
    from celery_wheelbeat.later.writers import Found, LaterWriter

logger = logging.getLogger("celery_wheelbeat.later")


def cancel(app: Any, task_ids: list[str]) -> None:
    """Cancel those tasks that can still be cancelled, and store that they are revoked, as a worker would."""
    try:
        with application_connection(None, app, savepoint=True) as connection:
            writer = writer_of(caller_of(connection))
            found = [(task_id, one.run) for task_id in task_ids if (one := _cancelled(writer, task_id))]
    except Exception as error:  # drivers have errors of many kinds
        logger.warning("wheelbeat: Tasks were revoked in workers only; one-off runs failed: %s", reason_of(error))
        return
    for task_id, run in found:
        try:
            _store_result(app, task_id, run)
        except Exception as error:  # of any backend
            logger.warning("wheelbeat: Task %s is cancelled, its result is not stored: %s", task_id, reason_of(error))


def _cancelled(writer: LaterWriter, task_id: str) -> Found | None:
    found = writer.of_id(task_id, lock=True) or writer.of_key(key_of(task_id), lock=True)
    if found is None or found.too_late or not writer.cancel(found.run.id):
        return None
    return found


def _store_result(app: Any, task_id: str, run: LaterRun) -> None:
    options = json.loads(run.options)
    request = Context(
        id=task_id,
        task=run.task,
        group=options.get("group_id"),
        group_index=options.get("group_index"),
        chord=options.get("chord"),
        errbacks=options.get("link_error"),
    )
    app.backend.mark_as_revoked(
        task_id, reason="revoked", request=request, store_result=not options.get("ignore_result")
    )
