"""Files beside Celery's schedule file (``-s``), all written by the beat.

Job. ``<path>.wheelbeat``: marks and status of a beat without a database. ``<path>.wheelbeat-installation``: the
installation's UUID, for a start while the database is down.

Threads and owners. The I/O thread: ``wheelbeat-file``, or ``wheelbeat-tail`` for the installation file.

Never. Opens Celery's schedule file. Stops the beat: a path that cannot be written is one warning.
"""
