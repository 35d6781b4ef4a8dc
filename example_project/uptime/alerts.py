"""Alerts and reminders: tasks that run once, stored in the transaction that knows why they are needed.

An alert goes out when that transaction has committed, and never if it rolls back. A reminder waits in the database, so
it survives restarts of workers and of the beat; it is cancelled when the site is up again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery import shared_task

from celery_wheelbeat import later

from .models import Alert, Site

if TYPE_CHECKING:
    from datetime import datetime

    from django_wheelbeat.models import Monitor


@shared_task
def send_alert(monitor_id: int, text: str) -> None:
    """Send a message about a monitor."""
    Alert.objects.create(monitor_id=monitor_id, text=text)


@shared_task
def send_reminder(monitor_id: int) -> None:
    """Say that a site is still down."""
    for site in Site.objects.filter(pk=monitor_id, up=False).select_related("monitor"):
        Alert.objects.create(monitor=site.monitor, text=f"{site.monitor.name} is still down: {site.error}")
    Site.objects.filter(pk=monitor_id).update(remind_at=None)


def note_change(monitor: Monitor, *, up: bool, error: str) -> None:
    """Alert that a site is down; that it is up again makes its reminder void. Joins the open transaction."""
    if up:
        later.cancel(key=reminder_key(monitor.pk))
        Site.objects.filter(pk=monitor.pk).update(remind_at=None)
    else:
        later.now(send_alert.s(monitor.pk, f"{monitor.name} is down: {error}"))


def remind(site: Site, at: datetime) -> None:
    """Remind at ``at`` that ``site`` is down, instead of any earlier reminder. Joins the open transaction."""
    later.apply_at(send_reminder.s(site.pk), at, key=reminder_key(site.pk), on_conflict="replace")
    Site.objects.filter(pk=site.pk).update(remind_at=at)


def reminder_key(monitor_id: int) -> str:
    """Return the key of a monitor's reminder: there is one at a time."""
    return f"remind:{monitor_id}"
