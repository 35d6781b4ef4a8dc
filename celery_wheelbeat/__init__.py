"""A drop-in Celery beat scheduler: monitors fire from a sharded time wheel, with computed schedules and ids."""

__version__ = "0.1.0"
