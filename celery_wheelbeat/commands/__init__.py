"""celery_wheelbeat.commands"""
