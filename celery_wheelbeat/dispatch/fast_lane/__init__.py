"""celery_wheelbeat.dispatch.celery_lane.lane.fast_lane"""
