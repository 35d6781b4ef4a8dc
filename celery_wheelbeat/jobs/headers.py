"""Names of the message headers that begin with ``wheelbeat_``."""

from __future__ import annotations

FIRE_MS = "wheelbeat_fire_ms"
NONCE = "wheelbeat_nonce"
OVERLAP = "wheelbeat_overlap"
JOB = "wheelbeat_job"
CLAIM_TTL = "wheelbeat_claim_ttl"
WAITING = "wheelbeat_waiting"
"""Set by a worker on a message that it published again because it has to wait for a lease."""
DELIVERY = "wheelbeat_delivery"
"""Set by the worker's main process in the ``delivery_info`` of a message: names the delivery, which owns its lease."""
FENCE = "wheelbeat_fence"
"""Set on the request of a running task: the fence number of its lease (``self.request.wheelbeat_fence``)."""

REMEMBERED_MAX_S = 31_536_000
"""As for ``wheelbeat_dedup_ttl``: a year."""
NODE = "wheelbeat_node"
"""Set in the worker's main process for a message of a fanout exchange: the name of the worker. Never published."""
