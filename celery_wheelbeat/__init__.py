"""A drop-in Celery beat scheduler: monitors fire from a sharded time wheel, with computed schedules and ids.

``celery_wheelbeat.later`` stores tasks that run once, at an instant.
"""

from celery_wheelbeat.errors import InvalidSchedule, WheelbeatError
from celery_wheelbeat.jobs.identity import run_id
from celery_wheelbeat.schedules.cron import Cron
from celery_wheelbeat.schedules.intervals import Interval, Once

__version__ = "0.1.0"

__all__ = ["Cron", "Interval", "InvalidSchedule", "Once", "WheelbeatError", "__version__", "run_id"]
