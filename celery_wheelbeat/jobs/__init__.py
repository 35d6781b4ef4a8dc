"""celery_wheelbeat.jobs.definitions"""
