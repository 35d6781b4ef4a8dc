"""CHECK constraints of ``wheelbeat_monitor``; they hold for forms, ``update()`` and plain SQL alike.

They cover what comparisons within one row can express. Cron expressions and JSON texts are checked by
``celery_wheelbeat.jobs.compile``; a row that fails there is quarantined, never sent.

Each comparison is combined with ``isnull=False`` because a check that evaluates to NULL passes.
"""

from __future__ import annotations

from django.db.models import CheckConstraint, F, Q
from django.utils.translation import gettext_lazy as _

_NOT_INTERVAL = Q(interval_ms__isnull=True)
_NOT_CRON = Q(cron="")
_NOT_ONCE = Q(once_at__isnull=True)
_NOT_SOLAR = Q(solar_event="", solar_latitude__isnull=True, solar_longitude__isnull=True)
_SOLAR = (
    ~Q(solar_event="")
    & Q(solar_latitude__isnull=False, solar_latitude__gte=-90, solar_latitude__lte=90)
    & Q(solar_longitude__isnull=False, solar_longitude__gte=-180, solar_longitude__lte=180)
)
_NO_INCIDENT = Q(incident_interval_ms__isnull=True, incident_until__isnull=True)

MONITOR_CONSTRAINTS = [
    CheckConstraint(
        name="wheelbeat_monitor_one_schedule",
        condition=(Q(interval_ms__isnull=False, interval_ms__gt=0) & _NOT_CRON & _NOT_ONCE & _NOT_SOLAR)
        | (_NOT_INTERVAL & ~_NOT_CRON & _NOT_ONCE & _NOT_SOLAR)
        | (_NOT_INTERVAL & _NOT_CRON & Q(once_at__isnull=False) & _NOT_SOLAR)
        | (_NOT_INTERVAL & _NOT_CRON & _NOT_ONCE & _SOLAR),
        violation_error_message=_(
            "Give exactly one schedule: an interval above zero, a cron expression, a single date and time, "
            "or a solar event with latitude and longitude."
        ),
    ),
    CheckConstraint(
        name="wheelbeat_monitor_named",
        condition=~Q(name="") & ~Q(task=""),
        violation_error_message=_("A monitor needs a name and a task."),
    ),
    CheckConstraint(
        name="wheelbeat_monitor_incident",
        condition=_NO_INCIDENT
        | (
            Q(incident_interval_ms__isnull=False, incident_interval_ms__gt=0, incident_until__isnull=False)
            & _NOT_ONCE
            & (_NOT_INTERVAL | Q(incident_interval_ms__lt=F("interval_ms")))
        ),
        violation_error_message=_(
            "An incident needs an interval shorter than the monitor's own, and an end; a single run has no incidents."
        ),
    ),
    CheckConstraint(
        name="wheelbeat_monitor_start_before_end",
        condition=Q(start_at__isnull=True) | Q(end_at__isnull=True) | Q(start_at__lt=F("end_at")),
        violation_error_message=_("The start must be before the end."),
    ),
    CheckConstraint(
        name="wheelbeat_monitor_expires",
        condition=Q(expires_s__isnull=True) | Q(expires_s__gt=0, expires_next=False),
        violation_error_message=_("Runs expire after a number of seconds above zero or at the next run, not both."),
    ),
    CheckConstraint(
        name="wheelbeat_monitor_jitter",
        condition=Q(jitter_s__isnull=True) | Q(jitter_s__gte=0),
        violation_error_message=_("The jitter must be zero or more seconds."),
    ),
    CheckConstraint(
        name="wheelbeat_monitor_priority",
        condition=Q(priority__isnull=True) | Q(priority__gte=0, priority__lte=255),
        violation_error_message=_("The priority must be between 0 and 255."),
    ),
    CheckConstraint(
        name="wheelbeat_monitor_choices",
        condition=Q(misfire__in=["auto", "skip", "latest", "all"])
        & Q(overlap__in=["allow", "skip", "queue_one"])
        & Q(day_rule__in=["and", "or"]),
        violation_error_message=_("Unknown misfire policy, overlap policy or day rule."),
    ),
]
