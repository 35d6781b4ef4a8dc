"""Where the runs of a lane wait: in turn (``fair_queue``), or apart for a pause after a refusal (``deferred``).

Job: keep runs as columns and decide their order.

Threads and owners: every queue belongs to one backlog, and so to the scheduling thread.

Never: count runs as sent or skipped; the backlog does that.
"""
