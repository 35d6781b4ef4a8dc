"""One execution at the worker: admitted, renewed, settled.

Job. ``admission`` decides before the task and notes the outcome after it. ``deliveries``, ``executions`` and
``renewer`` keep leases and claims alive meanwhile. ``deaths`` opens the claims of pool processes that were killed.

Threads and owners. ``Gate`` and ``Breaker``: the process that executes, shared by its threads. ``Deliveries``,
``Executions`` and ``Keeper``: the main process of the worker.

States of a message at the gate::

    arrived ──> claimed ──> leased ──> executing ──> settled
       │           └──> waits: published again with a countdown, or returned to the broker
       └──> dropped: a copy, or stale

Never. The lease is released before the claim is marked.
"""
