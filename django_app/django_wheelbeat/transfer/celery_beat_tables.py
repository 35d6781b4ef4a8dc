"""Models for the tables of django-celery-beat, so that the package need not be installed (it requires Django < 6).

The models have a registry of their own: Django's migrations, checks and admin never see them.
"""

from __future__ import annotations

from django.apps.registry import Apps
from django.db import connections, models

REGISTRY = Apps(())
PREFIX = "django_celery_beat"


def tables_missing(using: str) -> list[str]:
    """Return the names of its tables that are missing in database ``using``."""
    there = set(connections[using].introspection.table_names())
    return sorted({model._meta.db_table for model in REGISTRY.all_models[PREFIX].values()} - there)


class IntervalSchedule(models.Model):
    """A number of days, hours, minutes, seconds or microseconds."""

    every = models.IntegerField()
    period = models.CharField(max_length=24)

    class Meta:
        apps, app_label, db_table = REGISTRY, PREFIX, f"{PREFIX}_intervalschedule"


class CrontabSchedule(models.Model):
    """Celery's five crontab fields, and the name of a zone."""

    minute = models.CharField(max_length=240)
    hour = models.CharField(max_length=96)
    day_of_month = models.CharField(max_length=124)
    month_of_year = models.CharField(max_length=64)
    day_of_week = models.CharField(max_length=64)
    timezone = models.CharField(max_length=63)

    class Meta:
        apps, app_label, db_table = REGISTRY, PREFIX, f"{PREFIX}_crontabschedule"


class SolarSchedule(models.Model):
    """An event of the sun at a place."""

    event = models.CharField(max_length=24)
    latitude = models.DecimalField(max_digits=9, decimal_places=6)
    longitude = models.DecimalField(max_digits=9, decimal_places=6)

    class Meta:
        apps, app_label, db_table = REGISTRY, PREFIX, f"{PREFIX}_solarschedule"


class ClockedSchedule(models.Model):
    """One instant."""

    clocked_time = models.DateTimeField()

    class Meta:
        apps, app_label, db_table = REGISTRY, PREFIX, f"{PREFIX}_clockedschedule"


class PeriodicTask(models.Model):
    """A task with one of the schedules."""

    name = models.CharField(max_length=200)
    task = models.CharField(max_length=200)
    interval = models.ForeignKey(IntervalSchedule, models.DO_NOTHING, null=True)
    crontab = models.ForeignKey(CrontabSchedule, models.DO_NOTHING, null=True)
    solar = models.ForeignKey(SolarSchedule, models.DO_NOTHING, null=True)
    clocked = models.ForeignKey(ClockedSchedule, models.DO_NOTHING, null=True)
    args = models.TextField()
    kwargs = models.TextField()
    queue = models.CharField(max_length=200, null=True)
    exchange = models.CharField(max_length=200, null=True)
    routing_key = models.CharField(max_length=200, null=True)
    headers = models.TextField()
    priority = models.IntegerField(null=True)
    expires = models.DateTimeField(null=True)
    expire_seconds = models.IntegerField(null=True)
    one_off = models.BooleanField()
    start_time = models.DateTimeField(null=True)
    enabled = models.BooleanField()
    last_run_at = models.DateTimeField(null=True)
    total_run_count = models.IntegerField()
    date_changed = models.DateTimeField()
    description = models.TextField()

    class Meta:
        apps, app_label, db_table = REGISTRY, PREFIX, f"{PREFIX}_periodictask"
