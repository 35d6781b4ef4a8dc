"""The names of all message headers that begin with ``wheelbeat_``."""

from __future__ import annotations

FIRE_MS = "wheelbeat_fire_ms"
NONCE = "wheelbeat_nonce"
OVERLAP = "wheelbeat_overlap"
JOB = "wheelbeat_job"
CLAIM_TTL = "wheelbeat_claim_ttl"
WAITING = "wheelbeat_waiting"
"""Set by a worker on a message that it publishes again to wait for a lease."""
DELIVERY = "wheelbeat_delivery"
"""Set by the worker's main process in ``delivery_info``: the id of the delivery, which owns its lease."""
FENCE = "wheelbeat_fence"
"""Set on the request of a running task: the fence number of its lease (``self.request.wheelbeat_fence``)."""

REMEMBERED_MAX_S = 31_536_000
"""Longest time in seconds that a claim may be remembered: one year, as for ``wheelbeat_dedup_ttl``."""
NODE = "wheelbeat_node"
"""Set by the worker's main process on messages of a fanout exchange: the name of the worker. Never published."""
