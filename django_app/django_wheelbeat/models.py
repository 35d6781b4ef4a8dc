"""The tables of celery-wheelbeat.

Beats write status rows (``Beat``), ``Quarantine`` and ``Monitor.finished_at`` only. Triggers write ``Change``,
``Audit`` and ``Monitor.active_before``; the admin adds changes of one-off runs to ``Audit``. Workers write ``Claim``
and ``Lease``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_wheelbeat.monitors.columns import InstantField, TagLookup, UtcNow, default_timezone
from django_wheelbeat.monitors.constraints import MONITOR_CONSTRAINTS
from django_wheelbeat.monitors.incidents import end_incident, start_incident
from django_wheelbeat.monitors.queryset import MonitorQuerySet
from django_wheelbeat.monitors.run_now import run_monitor
from django_wheelbeat.monitors.text_fields import JsonListField, JsonObjectField, TagListField
from django_wheelbeat.monitors.validation import refuse_invalid

if TYPE_CHECKING:
    from datetime import datetime, timedelta
    from uuid import UUID


class Misfire(models.TextChoices):
    """Policy for missed runs."""

    AUTO = "auto", _("automatic")
    SKIP = "skip", _("skip")
    LATEST = "latest", _("the latest only")
    ALL = "all", _("all")


class Overlap(models.TextChoices):
    """Policy for a run that is due while the previous one is still executing."""

    ALLOW = "allow", _("allow")
    SKIP = "skip", _("skip")
    QUEUE_ONE = "queue_one", _("queue one")


class DayRule(models.TextChoices):
    """How two restricted day fields of a cron expression combine."""

    AND = "and", _("both must match")
    OR = "or", _("either may match")


class Monitor(models.Model):
    """A periodic task, edited in the admin."""

    name = models.CharField(_("name"), max_length=200, unique=True)
    task = models.CharField(_("task"), max_length=200)
    args = JsonListField(_("arguments"), default="[]", blank=True, db_default="[]")
    kwargs = JsonObjectField(_("keyword arguments"), default="{}", blank=True, db_default="{}")

    interval_ms = models.BigIntegerField(_("interval"), null=True, blank=True)
    cron = models.CharField(_("cron expression"), max_length=255, default="", blank=True, db_default="")
    timezone = models.CharField(_("time zone"), max_length=64, default=default_timezone, db_default="UTC")
    day_rule = models.CharField(
        _("day rule"), max_length=3, choices=DayRule.choices, default=DayRule.AND, db_default=DayRule.AND
    )
    once_at = InstantField(_("once at"), null=True, blank=True)
    solar_event = models.CharField(_("solar event"), max_length=24, default="", blank=True, db_default="")
    solar_latitude = models.FloatField(_("latitude"), null=True, blank=True)
    solar_longitude = models.FloatField(_("longitude"), null=True, blank=True)

    jitter_s = models.IntegerField(_("jitter (seconds)"), null=True, blank=True)
    start_at = InstantField(_("start"), null=True, blank=True)
    end_at = InstantField(_("end"), null=True, blank=True)
    one_off = models.BooleanField(_("one-off"), default=False, db_default=False)
    misfire = models.CharField(
        _("missed runs"), max_length=6, choices=Misfire.choices, default=Misfire.AUTO, db_default=Misfire.AUTO
    )
    overlap = models.CharField(
        _("overlapping runs"), max_length=9, choices=Overlap.choices, default=Overlap.ALLOW, db_default=Overlap.ALLOW
    )

    queue = models.CharField(_("queue"), max_length=200, default="", blank=True, db_default="")
    exchange = models.CharField(_("exchange"), max_length=200, default="", blank=True, db_default="")
    routing_key = models.CharField(_("routing key"), max_length=200, default="", blank=True, db_default="")
    priority = models.SmallIntegerField(_("priority"), null=True, blank=True)
    headers = JsonObjectField(_("headers"), default="{}", blank=True, db_default="{}")
    expires_s = models.FloatField(_("expires"), null=True, blank=True)
    expires_next = models.BooleanField(_("expires at the next run"), default=False, db_default=False)
    options = JsonObjectField(_("options"), default="{}", blank=True, db_default="{}")

    enabled = models.BooleanField(_("enabled"), default=True, db_default=True)
    pause_reason = models.CharField(_("pause reason"), max_length=200, default="", blank=True, db_default="")
    description = models.TextField(_("description"), default="", blank=True, db_default="")
    tags = TagListField(_("tags"), max_length=255, default="", blank=True, db_default="")

    incident_interval_ms = models.BigIntegerField(_("incident interval"), null=True, blank=True)
    incident_until = InstantField(_("end of the incident"), null=True, blank=True)

    active_before = models.CharField(
        _("enabled before"), max_length=255, default="", blank=True, db_default="", editable=False
    )
    """Periods in which the monitor was enabled before its last pause; see ``active_periods``. Written by a trigger."""
    effective_from = InstantField(_("in effect since"), db_default=UtcNow(), editable=False)
    finished_at = InstantField(_("finished"), null=True, blank=True, editable=False)

    objects: ClassVar[MonitorQuerySet] = MonitorQuerySet.as_manager()

    class Meta:
        db_table = "wheelbeat_monitor"
        verbose_name = _("monitor")
        verbose_name_plural = _("monitors")
        constraints = MONITOR_CONSTRAINTS
        permissions = [
            ("run_monitor", _("Can run monitor now")),
            ("pause_monitor", _("Can pause and resume monitor")),
            ("import_monitor", _("Can import monitors")),
            ("view_scheduler", _("Can view the scheduler page")),
            ("view_oneoffrun", _("Can view one-off runs")),
            ("cancel_oneoffrun", _("Can cancel one-off runs")),
            ("move_oneoffrun", _("Can move one-off runs")),
        ]
        # For the admin's filters; ``name`` is second where many monitors share a value, because the list is ordered by
        # name. Distinct tasks and queues are found by walking these indexes. PostgreSQL has more indexes:
        # database/sql/indexes_postgresql.sql.
        indexes = [
            models.Index(fields=["task", "name"], name="wheelbeat_monitor_by_task"),
            models.Index(fields=["queue", "name"], name="wheelbeat_monitor_by_queue"),
            models.Index(fields=["enabled", "name"], name="wheelbeat_monitor_by_enabled"),
            models.Index(fields=["interval_ms"], name="wheelbeat_monitor_by_interval"),
            models.Index(fields=["incident_until"], name="wheelbeat_monitor_incident_end"),
        ]

    def __str__(self) -> str:
        return str(self.name)

    def clean(self) -> None:
        """Apply the engine's validation; every problem is reported at its field."""
        super().clean()
        refuse_invalid(self)

    def speed_up(self, every: str | float | timedelta, until: datetime | timedelta) -> None:
        """Fire ``every`` (``"10s"``, seconds or a timedelta) until ``until`` (an instant, or a span from now).

        Executes one ``UPDATE`` and never ``save()``, so stale attributes of this instance are not written. Raises
        ``InvalidMonitor`` if the monitor already fires as often, or has no grid to speed up (once, solar).
        """
        start_incident(self, every, until)

    def end_incident(self) -> None:
        """Return to the base schedule immediately; does nothing if there is no incident."""
        end_incident(self)

    def run_now(self, request: UUID | None = None) -> str:
        """Send one run of the stored monitor immediately, with all of its options; return the run id.

        This process sends it, regardless of schedule and state, and without waiting for an open transaction to end.
        Calls with the same ``request`` (``celery_wheelbeat.commands.run_now.new_request``) send the same run. Raises
        ``InvalidMonitor`` if the definition cannot be sent, ``SendFailed`` if the broker does not accept the message.
        """
        return run_monitor(self, request)

    def touch(self) -> None:
        """Make beats read this monitor again, after an edit that fired no trigger."""
        type(self)._default_manager.using(self._state.db).filter(pk=self.pk).touch()


TagListField.register_lookup(TagLookup)


class AuditedOperation(models.TextChoices):
    """Kind of an audited change."""

    INSERT = "I", _("added")
    UPDATE = "U", _("changed")
    DELETE = "D", _("deleted")
    TRUNCATE = "T", _("table emptied")
    CANCEL = "C", _("one-off runs cancelled")
    MOVE = "M", _("one-off runs moved")


class Change(models.Model):
    """One row of the change log. Written by database triggers only.

    On PostgreSQL the table has one more column, ``xid`` (``xid8``, the writing transaction), which the snapshot cursor
    of the change log reads. It is not part of this model.
    """

    monitor_id = models.BigIntegerField(_("monitor id"), null=True)
    """NULL for an operation on the whole table (truncate, resync)."""
    operation = models.CharField(_("operation"), max_length=1)
    """``I``, ``U`` or ``D``; for the whole table ``T`` (truncate) or ``R`` (resync requested)."""
    at = InstantField(_("at"), db_default=UtcNow())
    actor = models.CharField(_("actor"), max_length=150, default="", db_default="")
    reason = models.CharField(_("reason"), max_length=200, default="", db_default="")

    class Meta:
        db_table = "wheelbeat_changelog"
        default_permissions = ("view",)
        verbose_name = _("change")
        verbose_name_plural = _("changes")
        indexes = [models.Index(fields=["monitor_id", "at"], name="wheelbeat_changelog_monitor")]


class Audit(models.Model):
    """One audited change with actor and reason, as ``wheelbeat_audit`` sets.

    Database triggers write those of monitors, the admin's page those of one-off runs.
    """

    at = InstantField(_("at"), db_default=UtcNow(), db_index=True)
    monitor_id = models.BigIntegerField(_("monitor id"), null=True, db_index=True)
    """NULL if the row is about all monitors of one statement."""
    operation = models.CharField(_("operation"), max_length=1, choices=AuditedOperation.choices)
    monitors = models.BigIntegerField(_("monitors"), default=1, db_default=1)
    """Number of monitors that changed."""
    changes = models.TextField(_("changes"), default="{}")
    """JSON: column → [before, after]; in a row about many monitors, column → number of monitors."""
    actor = models.CharField(_("actor"), max_length=150, default="", db_default="")
    reason = models.CharField(_("reason"), max_length=200, default="", db_default="")

    class Meta:
        db_table = "wheelbeat_audit"
        default_permissions = ("view",)
        verbose_name = _("audit entry")
        verbose_name_plural = _("audit entries")
        indexes = [models.Index(fields=["actor", "-id"], name="wheelbeat_audit_by_actor")]


class Beat(models.Model):
    """The status row of one beat process, read by admin, CLI and alarms."""

    beat_id = models.CharField(_("beat id"), max_length=36, primary_key=True)
    namespace = models.CharField(_("namespace"), max_length=200)
    host = models.CharField(_("host"), max_length=200)
    pid = models.IntegerField(_("process"))
    version = models.CharField(_("version"), max_length=40)
    started_at = InstantField(_("started"))
    seen_at = InstantField(_("last report"))
    marks = models.TextField(_("marks"), default="{}")
    status = models.TextField(_("status"), default="{}")

    class Meta:
        db_table = "wheelbeat_beat"
        default_permissions = ("view",)
        verbose_name = _("beat")
        verbose_name_plural = _("beats")
        indexes = [models.Index(fields=["namespace", "seen_at"], name="wheelbeat_beat_seen")]


class Quarantine(models.Model):
    """A definition that cannot be sent, with its reason."""

    job_key = models.CharField(_("job"), max_length=250, primary_key=True)
    definition_hash = models.CharField(_("definition"), max_length=64)
    reason = models.TextField(_("reason"))
    since = InstantField(_("since"), db_default=UtcNow())

    class Meta:
        db_table = "wheelbeat_quarantine"
        default_permissions = ("view",)
        verbose_name = _("monitor in quarantine")
        verbose_name_plural = _("monitors in quarantine")


class Installation(models.Model):
    """A single row: the UUID that is the default namespace of run ids, and how far the change log has been pruned."""

    uuid = models.CharField(max_length=36)
    schema_version = models.IntegerField(default=1)
    pruned_xid = models.BigIntegerField(default=0, db_default=0)
    pruned_id = models.BigIntegerField(default=0, db_default=0)

    class Meta:
        db_table = "wheelbeat_installation"
        default_permissions = ()


class Origin(models.Model):
    """Where an imported monitor came from, so that a later import can delete it when its source is gone."""

    monitor_id = models.BigIntegerField(primary_key=True)
    """Not a foreign key: monitors are also deleted by plain SQL, and this row must not prevent that."""
    source = models.CharField(max_length=200, db_index=True)
    name = models.CharField(max_length=200)
    """Name at the source. A monitor that has since been renamed belongs to the user and is never pruned."""

    class Meta:
        db_table = "wheelbeat_origin"
        default_permissions = ()


class Claim(models.Model):
    """A worker's right to execute a run, if claims are kept in this database.

    Workers access it over their own connections; see ``celery_wheelbeat.worker.stores.sql``.
    """

    id = models.CharField(max_length=32, primary_key=True)
    state = models.CharField(max_length=1)
    """``R`` running, ``O`` open, ``D`` done, ``S`` skipped."""
    nonce = models.CharField(max_length=16)
    execution = models.CharField(max_length=8)
    digest = models.CharField(max_length=8)
    digest_rest = models.CharField(max_length=8, db_default="")
    """Second half of the digest; older releases neither write nor read it."""
    started_ms = models.BigIntegerField()
    ended_ms = models.BigIntegerField()
    """0 while the run is executing."""
    expires_ms = models.BigIntegerField()

    class Meta:
        db_table = "wheelbeat_claim"
        default_permissions = ()
        indexes = [models.Index(fields=["expires_ms"], name="wheelbeat_claim_expires")]


class Lease(models.Model):
    """A lease on a job: its holder executes, so two runs of the job never overlap."""

    id = models.CharField(max_length=32, primary_key=True)
    owner = models.CharField(max_length=80)
    fence = models.BigIntegerField()
    until_ms = models.BigIntegerField()

    class Meta:
        db_table = "wheelbeat_lease"
        default_permissions = ()
