"""The table of monitors, followed through its change log.

Job. Load the table, apply the changes that the log names, and compare table and memory once per reconcile period.
Write status, quarantine and finished monitors from the outbox.

Threads and owners. Everything belongs to the I/O thread ``wheelbeat-tail``. Exceptions: ``bulk_load`` runs its readers
on threads of their own; the scheduling thread fills ``Outbox`` and empties the mailbox of ``Tail``.

States of the pass over the table::

    LOAD ──────last block──────> RECONCILE ──last block──> RECONCILE, next round
                                   │      ^
                       cursor lost v      │ last block
                                   RESYNC ┘

A cursor that is lost during a load restarts the load; during a resync, the resync.

Never. A failed step changes no state; it is retried. No exception leaves the thread.
"""
