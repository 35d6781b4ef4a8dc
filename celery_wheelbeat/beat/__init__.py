"""One running beat: Celery's scheduler interface, the steps of a tick, wiring, start and supervision.

Job. Per tick: read the clock, apply changes, advance the engine, submit due runs, collect outcomes, move the mark,
supervise, return the seconds to sleep. ``assembly`` constructs and connects the objects;
``startup`` has the states before ``running``.

Threads and owners. The scheduling thread, which calls ``tick``, owns every object here. The publisher threads belong to
``dispatch`` and the I/O thread to ``sources``; values cross over queues, and ``Wake`` ends the scheduler's sleep.

States::

    starting ──database read, or silent for OPENING_S──> loading ──last block──> running
        └───────nothing to load────────────────────────────────────────────────────^
    each of them ──close──> stopped

``starting``: nothing fires. ``loading``: entries and loaded monitors fire, the mark does not move. ``running``: all
jobs fire, the mark moves.

Never. A step never waits for a broker, a database or a thread. No constructor and no property does I/O.
"""
