"""A small HTTP-monitoring product on Django, Celery and celery-wheelbeat."""

from .celery import app as celery_app

__all__ = ["celery_app"]
