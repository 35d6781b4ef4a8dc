"""celery_wheelbeat.sources.databases.open"""
