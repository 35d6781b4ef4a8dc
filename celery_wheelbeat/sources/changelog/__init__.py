"""celery_wheelbeat.sources.changelog"""
