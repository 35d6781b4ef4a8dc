"""The Django app of celery-wheelbeat: monitors, their change log and the admin."""
