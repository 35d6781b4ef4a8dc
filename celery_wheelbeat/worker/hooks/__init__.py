"""celery_wheelbeat.worker.hooks"""
