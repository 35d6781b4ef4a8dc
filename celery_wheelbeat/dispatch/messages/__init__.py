"""celery_wheelbeat.dispatch.celery_lane.lane.messages"""
