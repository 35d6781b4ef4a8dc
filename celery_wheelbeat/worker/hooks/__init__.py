"""Where the worker side enters Celery.

Job. Install the gate around the task tracer, or ``Task.before_start`` where the tracer cannot be guarded; start the
keeper; keep discarded copies from overwriting results; answer ``inspect wheelbeat_claims``.

Threads and owners. Main process: checks and self-test before the fork, then the keeper. Pool process: the gate, after
its tracers are built.

Never. A worker start fails because the store is down. Contradictory options do stop it.
"""
