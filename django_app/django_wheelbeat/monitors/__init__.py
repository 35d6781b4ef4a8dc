"""The rules of one monitor: its columns, constraints, validation, queries, incidents and manual runs.

Imported by ``models`` and by every other package of the app. Imports ``celery_wheelbeat`` and, for types only,
``models``; never ``database``, ``bulk``, ``transfer`` or ``admin``.

Never: repeats a rule of the engine (``celery_wheelbeat.jobs.validation`` decides what can run), or changes monitors
other than by ``QuerySet.update`` and ``save``, which the triggers log.
"""
