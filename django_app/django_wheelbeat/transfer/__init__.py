"""Import and export of monitors: files, django-celery-beat and redbeat.

All of them use one format. A record names its monitor and holds columns as people write them (``interval: "5m"``,
instants in ISO 8601, arguments as JSON). Sources yield records; ``imports`` compares them with the stored monitors,
reports the differences and applies them.

Imported by ``admin`` and the management commands. Imports ``bulk``, ``database``, ``models`` and ``monitors``; never
``admin``.

Never: writes to another scheduler's tables or keys, imports a definition that cannot run, or runs anything: a one-time
run that was already due is imported as finished.
"""
