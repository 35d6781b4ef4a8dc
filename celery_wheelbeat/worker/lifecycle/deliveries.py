"""Deliveries that a worker's pool executes, as known to its main process: owners of leases to renew.

The main process gives every delivered message of a run an owner name before the pool sees it, and renews the leases of
deliveries that Celery counts as active. A pool process that is killed, or ends by its hard time limit, is not active
any more, so its lease expires. In a prefork pool, a task that holds the GIL for minutes cannot starve the renewal,
because it runs in another process.
"""

from __future__ import annotations

import itertools
import threading
import uuid
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_wheelbeat.jobs.headers import DELIVERY, FIRE_MS, NODE
from celery_wheelbeat.worker.headers import RunHeaders
from celery_wheelbeat.worker.overlap import lease_name

if TYPE_CHECKING:
    from collections.abc import Collection

    from celery_wheelbeat.worker.lifecycle.admission import Gate


class Delivery(NamedTuple):
    """A lease that an execution of this worker may hold."""

    owner: str
    lease: str
    lease_s: float
    request: weakref.ref[Any]
    """Weak reference to Celery's request, which disappears when the message is settled."""


class Deliveries:
    """Names deliveries and keeps those that need a lease. The consumer's thread writes, the keeper's thread reads."""

    def __init__(self) -> None:
        self._boot = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._held: dict[str, Delivery] = {}
        self._lock = threading.Lock()

    def receive(self, gate: Gate, request: Any) -> None:
        """Put an owner name into ``delivery_info`` of a run, and the worker's name if every worker executes it."""
        headers, delivery = request.request_dict, request.delivery_info
        if FIRE_MS not in headers:
            return
        owner = delivery[DELIVERY] = f"{self._boot}-{next(self._numbers)}"
        if _is_broadcast(request):
            delivery[NODE] = request.hostname
        task = request.task
        policy = gate.policy_of(task)
        try:
            lease = lease_name(RunHeaders.read(request.id, headers), policy, task.name)
        except (TypeError, ValueError):
            return  # the gate reports it when it executes
        if lease is None:
            return
        with self._lock:
            self._held[owner] = Delivery(owner, lease, policy.lease_s, weakref.ref(request))

    def executing(self, active: Collection[Any]) -> list[Delivery]:
        """Return the deliveries among Celery's ``active`` requests; drop the settled ones."""
        with self._lock:
            alive = {owner: delivery for owner, delivery in self._held.items() if delivery.request() is not None}
            self._held = alive
        executing = []
        for delivery in alive.values():
            request = delivery.request()
            if request is not None and request in active:
                executing.append(delivery)
        return executing


def _is_broadcast(request: Any) -> bool:
    """Return whether the message came through a fanout exchange, which copies it to every queue."""
    exchange = request.delivery_info.get("exchange")
    consumed = request.app.amqp.queues.consume_from.values()
    return any(queue.exchange.name == exchange and queue.exchange.type == "fanout" for queue in consumed)
