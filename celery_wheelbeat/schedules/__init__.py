"""Schedules: a schedule and an instant in, fire times out.

Job. Intervals, crons, one-time and solar schedules; time zones; durations as text. ``columns`` computes the same
answers for whole shards at once. All instants are integer milliseconds since the Unix epoch.

Threads and owners. Schedules are values: they may be used from any thread. Two caches are shared between threads:
``CronTable`` (``intern`` from any thread) and the segments of ``Zone``. A ``SolarSchedule`` belongs to one thread.

Never. A schedule never reads the clock or the time zone of the machine, never remembers a run, and never returns a fire
time at or before the instant it was given. The only I/O is the zone database, read once per zone.
"""
