"""Applies an operation to one chunk of monitors in one short transaction, with its audit and Django history.

Locks and memory are bounded by the chunk. A committed chunk stays committed if a later one fails; the caller reports
both. A bulk of up to ``BULK_ROWS`` monitors writes one entry per monitor to Django's history and to the audit. A larger
one has a single entry in each, which every chunk updates in its own transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import connections, router
from django.db.models import CharField, Value
from django.db.models.functions import Cast, Substr
from django.utils import timezone

from django_wheelbeat.bulk.operations import Note
from django_wheelbeat.database.actors import acting, gather_audit, gathered_audit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_wheelbeat.bulk.operations import Operation, Outcome

REPR_LENGTH = 200
"""Length of ``LogEntry.object_repr``."""


class Entries(NamedTuple):
    """The single entries of a large bulk so far; primary keys are 0 until the first change."""

    changed: int = 0
    """Monitors changed so far."""
    audit_id: int = 0
    history_id: int = 0


def change_chunk(monitors: Any, ids: Sequence[int], operation: Operation, user: Any) -> Outcome:
    """Apply ``operation`` to the monitors ``ids`` of queryset ``monitors`` in one transaction, as ``user``."""

    def note(keys: Sequence[int]) -> None:
        if keys:
            _note(monitors.filter(pk__in=keys), operation, user)

    with acting(user.get_username(), operation.reason, using=monitors.db):
        return operation.apply(monitors.filter(pk__in=ids), Note(note, router.db_for_write(LogEntry)))


def change_chunk_of_many(
    monitors: Any, ids: Sequence[int], operation: Operation, user: Any, entries: Entries
) -> tuple[Outcome, Entries]:
    """As ``change_chunk``, for a large bulk; return the outcome and ``entries`` with this chunk added."""
    using = monitors.db
    with acting(user.get_username(), operation.reason, using=using):
        gather_audit(entries.audit_id, using=using)
        outcome = operation.apply(monitors.filter(pk__in=ids), Note.nothing(using))
        entries = entries._replace(changed=entries.changed + len(outcome.changed), audit_id=gathered_audit(using=using))
        if outcome.changed:
            entries = entries._replace(history_id=note_all(monitors.model, operation, user, entries))
    return outcome, entries


def note_all(model: Any, operation: Operation, user: Any, entries: Entries) -> int:
    """Write or update the single entry of a large bulk in Django's history; return its primary key."""
    title = {"object_repr": f"{entries.changed} {model._meta.verbose_name_plural}"}
    if entries.history_id and LogEntry.objects.filter(pk=entries.history_id).update(**title):
        return entries.history_id
    content_type = ContentType.objects.get_for_model(model)
    columns = {"action_flag": operation.flag, "change_message": operation.message, **title}
    return int(LogEntry.objects.create(user_id=user.pk, content_type_id=content_type.pk, **columns).pk)


def _note(monitors: Any, operation: Operation, user: Any) -> None:
    """Write Django's history of ``monitors``; one statement if it is in the same database."""
    if router.db_for_write(LogEntry) != monitors.db:
        named = list(monitors.only("pk", "name"))
        LogEntry.objects.log_actions(user.pk, named, operation.flag, change_message=operation.message)
        return
    connection = connections[monitors.db]
    columns = {
        "action_time": Value(timezone.now(), LogEntry._meta.get_field("action_time")),
        "user_id": Value(user.pk),
        "content_type_id": Value(ContentType.objects.db_manager(monitors.db).get_for_model(monitors.model).pk),
        "object_id": Cast("pk", CharField()),
        "object_repr": Substr("name", 1, REPR_LENGTH),
        "action_flag": Value(operation.flag),
        "change_message": Value(operation.message),
    }
    select, parameters = monitors.order_by("pk").values_list(*columns.values()).query.get_compiler(monitors.db).as_sql()
    quoted = ", ".join(map(connection.ops.quote_name, columns))
    with connection.cursor() as cursor:
        table = connection.ops.quote_name(LogEntry._meta.db_table)
        cursor.execute(f"INSERT INTO {table} ({quoted}) {select}", parameters)
