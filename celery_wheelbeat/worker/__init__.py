"""The worker side: one copy of a run executes, and runs that must not overlap do not.

Job. ``install(app)`` in the module that creates the Celery app puts a gate in front of every task. The gate claims the
run in a store, takes the lease that its overlap policy needs, and then lets it run, drops it, delays it or returns it
to the broker. A message without ``wheelbeat_fire_ms`` passes at the cost of one look-up.

Threads and owners. The gate runs in the process, thread or greenlet that executes the task; one gate per process. In
the main process of a worker, the thread ``wheelbeat-keeper`` renews leases, prolongs claims and purges expired ones.

States of a claim::

                       ┌───────reopened───────┐
                       v                      │
    (none) ──elected─> RUNNING ──other end──> OPEN
                       │  │ └──success or retry──> DONE
            taken over └──┘ └──overlap or stale──> SKIPPED

``OPEN``: the same message may run again, no other may. A claim expires after its TTL, counted from the last election,
takeover or prolongation.

Never. A scheduler makes no claims. An exception of the store never reaches a task; the option ``outage`` decides then.
"""

from __future__ import annotations

from typing import Any


def install(app: Any) -> None:
    """Let the workers of ``app`` drop copies of runs and prevent overlap; may be called again. No I/O here.

    Includes ``celery_wheelbeat.later.install``: tasks with an eta are stored if ``wheelbeat_later_from`` says so.
    ``wheelbeat_worker = False`` switches it off. Settings and task options are checked when a worker starts.
    """
    from celery_wheelbeat.later import drop_in  # noqa: PLC0415 - a beat imports this package for its headers
    from celery_wheelbeat.worker.hooks.install import install_side  # noqa: PLC0415 - same

    install_side(app)
    drop_in.install(app)
