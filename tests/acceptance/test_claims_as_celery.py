"""A message that is not acknowledged has the fate that Celery gives it: the same executions with claims as without.

On RabbitMQ: a classic queue whose dead letters come back by themselves after a moment, as where a failed task is to be
tried again later, and a quorum queue with a delivery limit, whose dead letters somebody moves back. Every way in which
an execution can end badly meets every way in which a task can acknowledge. The worker with claims gets each message in
two copies more, and executes one.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

import amqp
import pytest
from kombu import Connection, Exchange, Queue
from support.claims import ClaimProject, now_ms

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from services import PrivateRabbit

pytestmark = [pytest.mark.processes, pytest.mark.redis, pytest.mark.amqp]

BAD_STARTS = 2
"""After these the task succeeds, if it is started again."""
DELIVERY_LIMIT = 1
COPIES = 3

TASKS = """
    import signal
    from celery.exceptions import Ignore
    from celery.worker.request import Request
    from kombu import Exchange, Queue

    app.conf.task_queues = [
        Queue(name, Exchange("{prefix}"), routing_key=name, queue_arguments=arguments)
        for name, arguments in {queues!r}.items()
    ]
    app.conf.worker_lost_wait = 0.5

    def accepted(nonce, pid):
        return f"accepted-{{nonce}}-{{pid}}"

    accept = Request.on_accepted

    def on_accepted(self, pid, at):
        accept(self, pid, at)
        open(accepted(self.request_dict["wheelbeat_nonce"], pid), "w").close()

    Request.on_accepted = on_accepted

    def end_badly(self, how):
        if how == "fails":
            raise RuntimeError(how)
        if how == "retries":
            raise self.retry(countdown=0, max_retries=9)
        if how == "ignores":
            raise Ignore
        if how == "rejects":
            raise Reject(how)
        if how == "requeues":
            raise Reject(how, requeue=True)
        if how == "is killed":  # not before the main process has acknowledged what it acknowledges early
            hold(accepted(self.request.wheelbeat_nonce, os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)  # until a time limit

    def behave(self, how):
        journal("start", self.request, nonce=self.request.get("wheelbeat_nonce"))
        if starts(self.request.id) <= {bad_starts}:
            end_badly(self, how)
        journal("done", self.request)

    for late in (False, True):
        for on_failure in (False, True):
            for on_lost in (False, True):
                app.task(bind=True, name=f"proj.behave_{{late:d}}{{on_failure:d}}{{on_lost:d}}", acks_late=late,
                    acks_on_failure_or_timeout=on_failure, reject_on_worker_lost=on_lost)(behave)
"""
LIMITS = {"exceeds its soft limit": {"soft_time_limit": 1}, "exceeds its hard limit": {"time_limit": 1}}
HOW = ("fails", "retries", "ignores", "rejects", "requeues", "is killed", *LIMITS)


class Case(NamedTuple):
    """One message, and the task that acknowledges it."""

    kind: str
    """Of its queue."""
    how: str
    late: bool
    on_failure: bool
    on_lost: bool

    @property
    def task(self) -> str:
        """Its name in the project."""
        return f"behave_{self.late:d}{self.on_failure:d}{self.on_lost:d}"


ACKNOWLEDGED = [(False, True, False), *product((True,), (False, True), (False, True))]
"""Early, where nothing else matters, and late in every way."""
CASES = [Case(kind, how, *acks) for kind, how, acks in product(("classic", "quorum"), HOW, ACKNOWLEDGED)]


def dead_letters_to(queue: str) -> dict[str, str]:
    """Return the arguments of a queue whose dead letters go to ``queue``."""
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}


class Topology:
    """Queues on a broker whose dead letters come back."""

    def __init__(self, server: PrivateRabbit) -> None:
        self.server = server
        self.prefix = f"claims-{uuid4().hex[:8]}"
        self.classic, self.quorum = f"{self.prefix}-classic", f"{self.prefix}-quorum"
        self.work = {
            self.classic: {"x-queue-type": "classic", **dead_letters_to(f"{self.classic}-later")},
            self.quorum: {
                "x-queue-type": "quorum",
                "x-delivery-limit": DELIVERY_LIMIT,
                **dead_letters_to(f"{self.quorum}-parked"),
            },
        }
        self.dead = {
            f"{self.classic}-later": {"x-message-ttl": 200, **dead_letters_to(self.classic)},
            f"{self.quorum}-parked": {},
        }
        with Connection(server.url) as connection:
            for name, arguments in self.dead.items():
                Queue(name, Exchange(""), routing_key=name, queue_arguments=arguments)(connection).declare()

    def project(self, folder: Path, redis_url: str, *, installed: bool) -> ClaimProject:
        """Return a project with these queues."""
        conf = {"broker_url": self.server.url, "result_backend": redis_url, "worker_detect_quorum_queues": True}
        tasks = TASKS.format(prefix=self.prefix, queues=self.work, bad_starts=BAD_STARTS)
        project = ClaimProject(folder, conf, installed=installed, extra=tasks)
        project.app.conf.broker_transport_options = {"confirm_publish": True}
        project.app.conf.task_queues = [
            Queue(name, Exchange(self.prefix), routing_key=name, queue_arguments=arguments)
            for name, arguments in self.work.items()
        ]
        return project

    def is_settled(self) -> bool:
        """Move parked messages back, as a person or a shovel does; whether none was left anywhere."""
        moved = 0
        with Connection(self.server.url) as connection:
            channel = connection.default_channel
            if any(channel.queue_declare(name, passive=True).message_count for name in (self.classic, self.quorum)):
                return False  # so rabbitmqctl, which takes a second of CPU, is asked only near the end
            while (message := channel.basic_get(f"{self.quorum}-parked")) is not None:
                channel.basic_publish(amqp.Message(message.body, **message.properties), "", self.quorum)
                channel.basic_ack(message.delivery_tag)
                moved += 1
        listed = self.server.ctl("list_queues", "--quiet", "--no-table-headers", "name", "messages").splitlines()
        left = {name: int(count) for name, count in (line.split("\t") for line in listed)}
        return not moved and not any(count for name, count in left.items() if name.startswith(self.prefix))


class Outcome(NamedTuple):
    """What a worker did with the messages of all cases."""

    project: ClaimProject
    events: Mapping[Case, list[str]]
    """From the journal."""


def outcome_of(topology: Topology, folder: Path, redis_url: str, *, installed: bool, copies: int) -> Outcome:
    """Publish every case to a worker, and end it once all messages are settled."""
    with topology.project(folder, redis_url, installed=installed) as project:
        project.pool_worker(concurrency=6)
        ids = {case: str(uuid4()) for case in CASES}
        fire_ms = now_ms()
        for case in CASES * copies:
            queue = f"{topology.prefix}-{case.kind}"
            project.publish(
                case.task, ids[case], fire_ms=fire_ms, args=(case.how,), queue=queue, **LIMITS.get(case.how, {})
            )
        project.until(lambda: len(project.count("start")) == len(CASES), "a start of each", timeout_s=240)
        project.until(topology.is_settled, "the end of all messages", timeout_s=240, every_s=1)
        found: dict[str, list[str]] = {run_id: [] for run_id in ids.values()}
        for line in project.lines():
            found[line.id].append(line.event)
    return Outcome(project, {case: found[run_id] for case, run_id in ids.items()})


@pytest.fixture(scope="module")
def topology(private_rabbit: PrivateRabbit) -> Topology:
    """The queues of this file."""
    return Topology(private_rabbit)


@pytest.fixture(scope="module")
def without(topology: Topology, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What a worker without claims does with one message of each case."""
    return outcome_of(topology, tmp_path_factory.mktemp("without"), redis_url, installed=False, copies=1)


@pytest.fixture(scope="module")
def beside(topology: Topology, redis_url: str, without: Outcome, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What a worker with claims does with three copies of each case."""
    return outcome_of(topology, tmp_path_factory.mktemp("with"), redis_url, installed=True, copies=COPIES)


def test_the_cases_are_what_they_are_meant_to_be(without: Outcome) -> None:
    again = {case for case, found in without.events.items() if found.count("start") > 1}
    assert {case.how for case in again} == set(HOW) - {"ignores"}
    # what was acknowledged early does not come back, unless it retries
    assert {case.how for case in again if not case.late} == {"retries"}
    assert {case for case in again if case.how == "fails"} == {
        case for case in CASES if case.how == "fails" and case.late and not case.on_failure
    }
    assert any(
        found.count("start") > 1 + DELIVERY_LIMIT
        for case, found in without.events.items()
        if case.kind == "quorum" and case.how == "requeues"
    )


@pytest.mark.timeout(600)
def test_every_message_is_executed_as_often_as_without_claims_and_its_copies_are_not(
    without: Outcome, beside: Outcome
) -> None:
    expected, project = without.events, beside.project
    assert {case: events for case, events in beside.events.items() if events != expected[case]} == {}
    assert project.logged("dropped (other)") >= len(CASES) * (COPIES - 1)
    nonces: dict[str, set[str]] = {}
    for line in project.lines("start"):
        nonces.setdefault(line.id, set()).add(line.more["nonce"])
    assert {len(elected) for elected in nonces.values()} == {1}, "what runs again is the elected message"
