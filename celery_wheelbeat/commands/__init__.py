"""The command line ``celery -A proj wheelbeat``: ``status explain next run later migrate dedup-check``.

Job. Answer questions about monitors, entries and beats, and send a single run, from a process that is not a beat.

Threads and owners. The main thread of the command, with a database connection of its own.

Never. Talks to a running beat: commands read the database, the mark file and the app. Moves a schedule: a run on
request has an id and an account of its own.
"""
