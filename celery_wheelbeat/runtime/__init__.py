"""celery_wheelbeat.runtime"""
