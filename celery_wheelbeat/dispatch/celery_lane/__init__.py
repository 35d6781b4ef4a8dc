"""The celery lane: each run is sent through Celery's own ``apply_entry``, in a kombu batch if possible.

Job: serve every job that the fast lane cannot: entries of ``beat_schedule``, single-run monitors, patched or observed
publish paths, transports other than Redis and RabbitMQ. Runs wait as (job, fire time) pairs and are rendered from the
current definition when they are submitted.

Threads and owners: the scheduling thread owns ``CeleryLane``. The publisher thread owns the connection and runs all
user code (lazy arguments, routers, overridden methods). On RabbitMQ it checks each message before writing it.

Never: retry inside Celery (the retry loop is ours); conclude anything from the return of ``apply_entry``; let the
exception of one run stop another; change the user's entry or options.
"""
