"""Manual runs: this process sends them through the current Celery app, without a beat.

A request covers any number of monitors; the same request again sends the same run of each. If one fails, the runs
already sent remain sent and are reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from celery import current_app
from django.apps import apps

from celery_wheelbeat.commands.run_now import new_request, send_now
from celery_wheelbeat.errors import InvalidMonitor, InvalidSetting, SendFailed
from celery_wheelbeat.sources.lookup import definition_of_row
from celery_wheelbeat.sources.namespaces import namespace_of
from django_wheelbeat.monitors.row_errors import problem_of
from django_wheelbeat.monitors.rows import row_of
from django_wheelbeat.monitors.settings import beat_settings
from django_wheelbeat.monitors.times import now_ms

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from django_wheelbeat.models import Monitor


class Sent(NamedTuple):
    """Result of a request."""

    run_ids: dict[int, str]
    """Primary key → run id of the runs sent."""
    refused: dict[str, str]
    """Name → reason why the definition cannot be sent."""
    failure: str
    """Why sending stopped early; empty if it did not."""


def run_monitor(monitor: Monitor, request: UUID | None = None) -> str:
    """See ``Monitor.run_now``."""
    stored = type(monitor)._default_manager.using(monitor._state.db).get(pk=monitor.pk)
    return _send(stored, namespace_in(monitor._state.db), request or new_request(now_ms()), None)


def run_monitors(monitors: Iterable[Monitor], request: UUID, *, using: str) -> Sent:
    """Send one run of each monitor, fully loaded from database ``using``, over one broker connection."""
    sent = Sent({}, {}, "")
    namespace = namespace_in(using)
    try:
        with current_app.producer_or_acquire() as producer:
            for monitor in monitors:
                try:
                    sent.run_ids[monitor.pk] = _send(monitor, namespace, request, producer)
                except InvalidMonitor as problem:
                    sent.refused[monitor.name] = str(problem)
    except SendFailed as failure:
        return sent._replace(failure=str(failure))
    return sent


def _send(monitor: Monitor, namespace: str, request: UUID, producer: Any) -> str:
    settings, row = beat_settings(), row_of(monitor)
    try:
        definition = definition_of_row(current_app, settings, row)
        return send_now(current_app, settings, definition, namespace=namespace, request=request, producer=producer)
    except (SendFailed, InvalidSetting):
        raise
    except Exception as error:
        raise problem_of(row, error) from error


def namespace_in(using: str | None) -> str:
    """Return the namespace of run ids for monitors in database ``using``."""
    installations = apps.get_model("wheelbeat", "Installation")._default_manager.using(using)
    uuid = installations.order_by("pk").values_list("uuid", flat=True).first()
    return namespace_of(current_app, beat_settings(), uuid)
