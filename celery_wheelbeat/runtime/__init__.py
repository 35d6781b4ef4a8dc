"""The clock, threads, and the two ways in which threads talk to each other: a wake-up and a mailbox.

Job: read the time in one place and classify its jumps (``ClockGuard``); run a loop in a thread of its own
(``OwnedThread``); let any thread wake one other (``Wake``) or pass values to it (``Mailbox``).

Threads and owners: the scheduling thread owns the ``ClockGuard``. Any thread may ring or put; one thread waits or gets.
The owner of an ``OwnedThread`` starts and stops it.

States of the clock between two looks: steady, stalled, forward, wait (≤ 5 s behind), back (> 5 s behind).

Never: move the time handed out backwards without reporting ``BACK``; leave a lock held when a signal handler raises.
"""
