"""celery_wheelbeat.beat.beat"""
