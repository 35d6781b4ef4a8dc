"""celery_wheelbeat.schedules.intervals"""
