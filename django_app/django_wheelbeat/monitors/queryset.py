"""The query set of monitors: filters, and changes to many monitors at once.

Every change goes through ``QuerySet.update``, so triggers write it to the change log and beats see it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.apps import apps
from django.db import connections, models
from django.db.models import F, Q, Value
from django.db.models.functions import Cast, Concat, Substr

from django_wheelbeat.monitors.incidents import incident_end, incident_interval_ms

if TYPE_CHECKING:
    from datetime import datetime, timedelta
    from typing import Self

    from django_wheelbeat.models import Monitor  # noqa: F401 - named in the base of MonitorQuerySet

MONITOR_KEY_PREFIX = "monitor:"

SCHEDULE_KINDS = {
    "interval": Q(interval_ms__isnull=False),
    "cron": Q(cron__gt=""),
    "once": Q(once_at__isnull=False),
    "solar": Q(solar_event__gt=""),
}


class MonitorQuerySet(models.QuerySet["Monitor"]):
    """``Monitor.objects``."""

    def tagged(self, tag: str) -> Self:
        """Keep monitors with exactly the tag ``tag``; tags are stored as ``a,b,c``."""
        return self.filter(tags__tag=tag)

    def of_kind(self, kind: str) -> Self:
        """Keep monitors whose schedule is ``interval``, ``cron``, ``once`` or ``solar``."""
        return self.filter(SCHEDULE_KINDS[kind])

    def in_incident(self, now: datetime) -> Self:
        """Keep monitors whose incident has not ended."""
        return self.filter(incident_until__gte=now, incident_interval_ms__isnull=False)

    def quarantined(self) -> Self:
        """Keep monitors that a beat has put into quarantine."""
        return self.filter(pk__in=_quarantined_ids())

    def not_quarantined(self) -> Self:
        """Keep monitors that are not in quarantine."""
        return self.filter(~models.Exists(_quarantine().filter(job_key=_job_key())))

    def with_quarantine(self) -> Self:
        """Annotate ``quarantine_reason``: text, or None outside quarantine; costs one index look-up per row read."""
        reasons = _quarantine().filter(job_key=_job_key()).values("reason")[:1]
        return self.annotate(quarantine_reason=models.Subquery(reasons))

    def pause(self, reason: str = "") -> int:
        """Disable enabled monitors and store the reason; return how many changed."""
        return self.filter(enabled=True).update(enabled=False, pause_reason=reason)

    def resume(self) -> int:
        """Enable disabled monitors; return how many changed."""
        return self.filter(enabled=False).update(enabled=True, pause_reason="")

    def speed_up(self, every: str | float | timedelta, until: datetime | timedelta) -> int:
        """Start an incident: fire ``every`` until ``until``. Return how many monitors changed.

        Skips monitors whose interval is already as short, and those without a grid (once, solar).

        ``every``: text such as ``"10s"``, seconds, or a timedelta. ``until``: an instant, or a span from now.
        Raises ``WheelbeatError`` if the span is not positive or the end has passed.
        """
        every_ms, end = incident_interval_ms(every), incident_end(until)
        return self.slower_than(every_ms).update(incident_interval_ms=every_ms, incident_until=end)

    def slower_than(self, every_ms: int) -> Self:
        """Keep monitors that an incident with this interval can speed up."""
        return self.filter(Q(cron__gt="") | Q(interval_ms__gt=every_ms))

    def touch(self, actor: str = "", reason: str = "") -> int:
        """Write one row into the change log for each monitor; return how many.

        For writes that fire no trigger (disabled triggers, bulk load, logical replication): beats read the monitors
        again within two seconds, instead of at their next comparison of the whole table. One ``INSERT … SELECT``
        regardless of the number.
        """
        connection = connections[self.db]
        changed = self.order_by("pk").values_list("pk", Value("U"), Value(actor), Value(reason))
        select, parameters = changed.query.get_compiler(self.db).as_sql()
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO wheelbeat_changelog (monitor_id, operation, actor, reason) {select}", parameters
            )
            return int(cursor.rowcount)

    def end_incident(self) -> int:
        """Return to the base schedule immediately; return how many monitors had an incident."""
        return self.filter(incident_until__isnull=False).update(incident_interval_ms=None, incident_until=None)


def _quarantine() -> models.QuerySet:
    return apps.get_model("wheelbeat", "Quarantine")._default_manager.all()


def _job_key() -> Concat:
    """Job key of the monitor in the outer query."""
    return Concat(Value(MONITOR_KEY_PREFIX), Cast(models.OuterRef("pk"), models.CharField()))


def _quarantined_ids() -> models.QuerySet:
    digits = Substr(F("job_key"), len(MONITOR_KEY_PREFIX) + 1)
    keys = _quarantine().filter(job_key__startswith=MONITOR_KEY_PREFIX)
    return keys.annotate(monitor_id=Cast(digits, models.BigIntegerField())).values("monitor_id")
