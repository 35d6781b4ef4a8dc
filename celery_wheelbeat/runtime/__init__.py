"""The clock and the two ways in which threads talk to each other: a wake-up and a mailbox.

Job: read the time in one place and classify its jumps (``ClockGuard``); let any thread wake one other (``Wake``) or
pass values to it (``Mailbox``).

Threads and owners: the scheduling thread owns the ``ClockGuard``. Any thread may ring or put; one thread waits or gets.

States of the clock between two looks: steady, stalled, forward, wait (≤ 5 s behind), back (> 5 s behind).

Never: move the time handed out backwards without reporting ``BACK``; leave a lock held when a signal handler raises.
"""
