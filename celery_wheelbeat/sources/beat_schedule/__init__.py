"""celery_wheelbeat.sources.beat_schedule"""
