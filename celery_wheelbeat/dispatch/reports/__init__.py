"""celery_wheelbeat.dispatch.celery_lane.lane.reports"""
