"""celery_wheelbeat.sources.files"""
