"""Entries of ``beat_schedule`` and ``add_periodic_task``, and the translation between Celery's schedules and ours.

Job. Compile entries to the ``ChangeBatch`` that a database of monitors delivers too.

Threads and owners. The scheduling thread. Other threads may add and remove entries at any time.

Never. Writes to an entry: entries belong to the user. Guesses a schedule: an object whose class is not known exactly
is polled as Celery polls it.
"""
