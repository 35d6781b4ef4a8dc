"""Databases of monitors: PostgreSQL, MariaDB and SQLite.

Job. One implementation of ``MonitorSource``, ``BeatStore`` and ``ColumnReader`` per vendor. The SQL is in ``sql/``.

Threads and owners. Each ``Session`` is one connection, used by one thread: the I/O thread for source and store, a
reader thread for columns. Commands open their own.

Never. Uses a connection of Django's, or lets an exception of a driver out: callers see ``SourceError`` or
``CursorLost``.
"""
