"""celery_wheelbeat.worker.lifecycle"""
