"""The engine's validation as Django's ``ValidationError``: the same checks and messages."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from django.core.exceptions import NON_FIELD_ERRORS, FieldDoesNotExist, ValidationError
from kombu.utils.json import loads

from celery_wheelbeat.jobs.rows import Limits
from celery_wheelbeat.jobs.validation import check
from django_wheelbeat.monitors.rows import row_of
from django_wheelbeat.monitors.settings import beat_settings

if TYPE_CHECKING:
    from django.db import IntegrityError

    from django_wheelbeat.models import Monitor


def refuse_invalid(monitor: Monitor) -> None:
    """Raise ``ValidationError`` with every problem of ``monitor``, each at its field."""
    found = defaultdict(list)
    try:
        problems = check(row_of(monitor), limits=Limits.of(beat_settings(), loads))
    except TypeError:
        return  # a value of the wrong type was assigned in code; clean_fields() reports it
    for problem in problems:
        found[_field_of(monitor, problem.field)].append(problem.reason)
    if found:
        raise ValidationError(found)


def _field_of(monitor: Monitor, column: str) -> str:
    for name in (column, column.removesuffix("_ms")):
        try:
            return monitor._meta.get_field(name).name
        except FieldDoesNotExist:
            continue
    return NON_FIELD_ERRORS


def refusal_of(error: IntegrityError, model: type[Monitor]) -> str:
    """Return the message of the constraint that rejected a row which the form had accepted."""
    text = str(error)
    for constraint in model._meta.total_unique_constraints + model._meta.constraints:
        if constraint.name in text:
            return str(constraint.get_violation_error_message())
    return f"The database rejected the monitor, nothing was saved: {text.splitlines()[0]}"
