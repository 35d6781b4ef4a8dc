"""What the app needs from its database beyond the ORM: triggers, vendor columns, actors, retention, connections.

The SQL texts are in ``sql/``, one set per vendor: PostgreSQL, MariaDB, SQLite. Imported by ``apps``, ``checks``, the
migrations, ``bulk``, ``transfer``, ``admin`` and the management commands. Imports ``models``, ``monitors`` and
``periods``; never ``bulk``, ``transfer`` or ``admin``.

Never: inserts into the change log or the audit from Python (triggers do; see ``actors``), or hands one of Django's
connections to a beat or a worker (both connect by themselves; see ``opening`` and ``claim_store``).
"""
