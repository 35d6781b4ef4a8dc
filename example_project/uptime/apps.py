"""App configuration."""

from django.apps import AppConfig


class UptimeConfig(AppConfig):
    """The product's only app."""

    name = "uptime"
