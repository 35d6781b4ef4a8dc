"""celery_wheelbeat.dispatch.celery_lane.lane.celery_lane"""
