"""Message bytes: one message of Celery's becomes a template, which is filled for thousands of runs.

Job: record two messages that Celery makes for one form, cut the first into constants and holes, prove the cut by
rendering the second byte by byte, and fill the holes from columns of run ids, fire times and cached per-job parts.

Threads and owners: values and pure functions, apart from the part cache (scheduling thread) and the recording of
messages (the thread that owns the connection).

Never: send anything; guess. Where a value is not found exactly as often as expected, the answer is a reason and the
celery lane sends the message.
"""
