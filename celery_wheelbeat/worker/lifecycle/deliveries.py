"""The deliveries that a worker's pool executes, as its main process sees them: named, and their leases prolonged.

The main process names every delivered message of a run before the pool sees it, and prolongs the leases of those that
Celery counts as active. A pool process that is killed, or ends by its hard time limit, is no longer active: its lease
ends by itself. A task that holds the GIL for minutes cannot starve the renewal of a prefork
pool, because it does not run in this process.
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
    """Celery's request; it is gone when the message is settled."""


class Deliveries:
    """Names deliveries, and keeps those that need a lease. Filled by the consumer's thread, read by the keeper's."""

    def __init__(self) -> None:
        self._boot = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._held: dict[str, Delivery] = {}
        self._lock = threading.Lock()

    def receive(self, gate: Gate, request: Any) -> None:
        """Name the delivery of ``request`` where it is a run, and the worker where each is to execute it."""
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
            return  # the gate says so when it executes
        if lease is None:
            return
        with self._lock:
            self._held[owner] = Delivery(owner, lease, policy.lease_s, weakref.ref(request))

    def executing(self, active: Collection[Any]) -> list[Delivery]:
        """Return the deliveries among Celery's ``active`` requests, and forget the settled ones."""
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
    """Whether the message came by a fanout exchange: every queue behind it has the same message."""
    exchange = request.delivery_info.get("exchange")
    consumed = request.app.amqp.queues.consume_from.values()
    return any(queue.exchange.name == exchange and queue.exchange.type == "fanout" for queue in consumed)
