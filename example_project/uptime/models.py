"""The state of every checked site, and the history of checks."""

from __future__ import annotations

from django.db import models

from django_wheelbeat.models import Monitor


class Site(models.Model):
    """Current state of the URL that a monitor checks."""

    monitor = models.OneToOneField(Monitor, on_delete=models.CASCADE, primary_key=True)
    up = models.BooleanField()
    since = models.DateTimeField()
    """Instant of the last change between up and down."""
    failures = models.PositiveIntegerField(default=0)
    """Failed checks in a row."""
    checked_at = models.DateTimeField()
    latency_ms = models.PositiveIntegerField()
    error = models.CharField(max_length=200, blank=True)
    remind_at = models.DateTimeField(null=True)
    """When somebody wants to be reminded that the site is still down."""

    def __str__(self) -> str:
        return f"{self.monitor_id}: {'up' if self.up else 'down'}"


class Alert(models.Model):
    """A message to the people on call; a real product would send it by mail."""

    monitor = models.ForeignKey(Monitor, on_delete=models.CASCADE)
    at = models.DateTimeField(auto_now_add=True)
    text = models.CharField(max_length=300)

    class Meta:
        indexes = [models.Index(fields=["-at"], name="uptime_alert_at")]

    def __str__(self) -> str:
        return f"{self.at:%H:%M:%S}: {self.text}"


class Check(models.Model):
    """One run of a monitor: due at ``fire_at``, done ``late_ms`` later."""

    monitor = models.ForeignKey(Monitor, on_delete=models.CASCADE)
    fire_at = models.DateTimeField()
    late_ms = models.IntegerField()
    """From the fire time to the start of the check in the worker."""
    up = models.BooleanField()
    latency_ms = models.PositiveIntegerField()
    error = models.CharField(max_length=200, blank=True)

    class Meta:
        indexes = [models.Index(fields=["fire_at"], name="uptime_check_fire_at")]
        constraints = [
            # A run has one fire time, so a message delivered twice stores one check.
            models.UniqueConstraint(fields=["monitor", "fire_at"], name="uptime_check_one_per_run"),
        ]

    def __str__(self) -> str:
        return f"{self.monitor_id} at {self.fire_at:%H:%M:%S}: {'up' if self.up else 'down'}"
