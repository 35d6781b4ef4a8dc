"""The worker side of one app: its parts and the moments at which they start.

Main process, before the fork: check settings and task options, choose and prepare the store, self-test the hook. Pool
process, after its tracers are built: wrap them with the gate. Main process, after every (re)connect: the same for pools
without processes, then start the keeper. A worker starts although its store is down; contradictory options stop it.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from billiard.process import current_process
from celery import bootsteps
from celery.signals import task_received, worker_process_init

from celery_wheelbeat.errors import ClaimStoreDown
from celery_wheelbeat.runtime.clock import SystemClock
from celery_wheelbeat.settings import Settings
from celery_wheelbeat.settings.in_command import plain_refusal
from celery_wheelbeat.worker.broker_dedup import renumber_attempts
from celery_wheelbeat.worker.counters import Counters
from celery_wheelbeat.worker.hooks import inspected  # noqa: F401 - registers its command
from celery_wheelbeat.worker.hooks.before_start import guard_before_start
from celery_wheelbeat.worker.hooks.revocations import Revocations, guard_results
from celery_wheelbeat.worker.hooks.tracer_hook import guard_all, why_not_live
from celery_wheelbeat.worker.lifecycle.admission import Gate
from celery_wheelbeat.worker.lifecycle.deaths import Deaths, guard_failures
from celery_wheelbeat.worker.lifecycle.deliveries import Deliveries
from celery_wheelbeat.worker.lifecycle.executions import Executions
from celery_wheelbeat.worker.lifecycle.rate import ClaimRate
from celery_wheelbeat.worker.lifecycle.renewer import Renewer
from celery_wheelbeat.worker.stores.choice import choose_store

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

FLAGGING_TRANSPORTS = ("amqp", "redis")
"""Driver types that set ``redelivered`` on every redelivery; the other virtual transports never set it."""


class WorkerSide:
    """The worker side of ``app``; inactive until ``activate``."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.counters = Counters()
        self.deliveries = Deliveries()
        self.gate: Gate | None = None
        self.where = "not active"
        self.hook = "off"
        """``trace``, ``before_start`` or ``off``: how runs are stopped before their task starts."""
        self._activated = False
        self._renumbers = False
        """Whether retries need their own broker identifiers. Never in a beat: a receiver would slow its messages."""
        self._pace = ClaimRate(time.monotonic())
        self._renewer: Renewer | None = None

    def activate(self) -> None:
        """Choose hook and store; raises ``InvalidSetting``. Once per process tree, before any tracer is built."""
        if self._activated:
            return
        self._activated = True
        settings = Settings.from_conf(self.app.conf)
        if settings.worker is False:
            return
        choice = choose_store(self.app, settings.dedup_url)
        self.where = choice.where
        if choice.store is None:
            logger.warning(
                "Copies of runs are not dropped and overlap is not prevented: %s cannot keep claims. Set "
                "wheelbeat_dedup_url to a redis://, postgresql://, mysql:// or sqlite:/// URL",
                choice.where,
            )
            return
        driver = getattr(self.app.connection_for_read().transport, "driver_type", "")
        self._renumbers = driver == "amqp"
        gate = Gate(
            choice.store,
            settings,
            self.counters,
            flags_redelivery=driver in FLAGGING_TRANSPORTS,
            wall_ms=SystemClock().wall_ms,
        )
        for task in self.app.tasks.values():
            gate.policy_of(task)
        self._prepare(choice.store.prepare, choice.store.close)
        if choice.store.best_effort:
            logger.warning("Claims in %s have weaker guarantees: %s", choice.where, choice.store.best_effort)
        self._choose_hook(gate)
        guard_results(self.app.tasks, Revocations(gate))
        guard_failures(self.app.tasks, Deaths(gate))
        self.gate = gate

    def enter_process(self, hostname: str | None = None) -> None:
        """Wrap the tracers of a process that executes tasks with the gate, and self-test the hook."""
        self.counters.use_column(1 + getattr(current_process(), "index", -1))
        self.activate()  # has an effect only in a spawned pool process
        self.guard_tracers()
        if self.gate is not None and self.hook == "trace" and (reason := why_not_live(self.app)):
            logger.critical("Copies of runs are not dropped in this process (%s): %s", hostname, reason)

    def guard_tracers(self) -> None:
        """Wrap every tracer of this process with the gate; repeat after Celery has rebuilt them."""
        if self.gate is not None and self.hook == "trace":
            guard_all(self.app.tasks, self.gate)
        if self._renumbers:
            renumber_attempts()

    def start_renewer(self) -> None:
        """Start the keeper, once, in the main process."""
        if self.gate is not None and self._renewer is None:
            lease_s = self.gate.shortest_lease_s()
            executions = Executions(self.gate)
            self._renewer = Renewer(
                self.gate.store, self.deliveries, executions, self.counters, self._pace, lease_s=lease_s
            )
            self._renewer.start()

    def stop_renewer(self) -> None:
        """Stop the keeper."""
        if self._renewer is not None:
            self._renewer.stop()
            self._renewer = None

    def receive(self, request: Any) -> None:
        """Register a message that the main process passes to the pool."""
        if self.gate is not None:
            self.deliveries.receive(self.gate, request)

    def report(self) -> Mapping[str, Any]:
        """Return this worker's answer to ``celery inspect wheelbeat_claims``."""
        counters = self.counters.totals()
        rate = self._pace.per_s(time.monotonic(), counters["elected"])
        return {"hook": self.hook, "store": self.where, "counters": counters, "elected_per_s": rate}

    def _prepare(self, prepare: Any, close: Any) -> None:
        try:
            prepare()
        except ClaimStoreDown as error:
            logger.warning("%s; this worker starts without it", error)
        finally:
            close()  # no connection may be open when the pool forks

    def _choose_hook(self, gate: Gate) -> None:
        reason = why_not_live(self.app)
        if reason is None:
            self.hook = "trace"
            logger.info("Copies of runs are dropped; claims in %s", self.where)
            return
        self.hook = "before_start"
        guard_before_start(self.app.tasks, gate)
        logger.warning(
            "Copies of runs are dropped by Task.before_start, because %s. Weaker: a dropped copy is seen by "
            "task_prerun and task_postrun, and with task_track_started it can turn a stored result into STARTED",
            reason,
        )


class ActivateStep(bootsteps.Step):  # type: ignore[misc]  # celery has no types
    """Worker bootstep: activates in its constructor, so that contradictory options stop the worker."""

    def __init__(self, worker: Any, **_: Any) -> None:
        with plain_refusal():
            side_of(worker.app).activate()


class GuardStep(bootsteps.StartStopStep):  # type: ignore[misc]  # celery has no types
    """Consumer bootstep: wraps the tracers that every (re)connect rebuilds."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, consumer: Any) -> None:
        """After ``Tasks`` has built the tracers of the main process."""
        side = side_of(consumer.app)
        side.guard_tracers()
        side.start_renewer()

    def shutdown(self, consumer: Any) -> None:
        """Stop the keeper when the worker ends."""
        side_of(consumer.app).stop_renewer()


_sides: dict[int, WorkerSide] = {}


def installed_side(app: Any) -> WorkerSide | None:
    """Return the worker side of ``app``, or None if it is not installed."""
    return _sides.get(id(_plain(app)))


def side_of(app: Any) -> WorkerSide:
    """Return the worker side of ``app``; raises KeyError if it is not installed."""
    return _sides[id(_plain(app))]


def install_side(app: Any) -> None:
    """See ``celery_wheelbeat.worker.install``."""
    app = _plain(app)
    if id(app) in _sides:
        return
    side = _sides[id(app)] = WorkerSide(app)
    app.steps["worker"].add(ActivateStep)
    app.steps["consumer"].add(GuardStep)

    def enter_process(sender: str | None = None, **_: Any) -> None:
        side.enter_process(sender)

    def receive(sender: Any = None, request: Any = None, **_: Any) -> None:  # noqa: ARG001 - signals pass keywords
        if request.app is app:
            side.receive(request)

    worker_process_init.connect(enter_process, weak=False, dispatch_uid=f"celery_wheelbeat.{id(app)}")
    task_received.connect(receive, weak=False, dispatch_uid=f"celery_wheelbeat.{id(app)}")


def _plain(app: Any) -> Any:
    return app._get_current_object() if hasattr(app, "_get_current_object") else app
