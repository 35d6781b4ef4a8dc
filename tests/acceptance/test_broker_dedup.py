"""What a beat with ``wheelbeat_broker_dedup`` really puts on the wire, for brokers that drop copies themselves.

Neither Amazon nor RabbitMQ's plug-in is here, and that they drop copies is theirs to show; what they judge by is shown.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest
from services import wait_until
from support.claims import ClaimProject
from support.sqs import SqsEndpoint

from celery_wheelbeat.worker.claims import claim_key

if TYPE_CHECKING:
    from pathlib import Path

    from celery import Celery

pytestmark = pytest.mark.processes

RUNS, COPIES = 3, 2
BEATS = {
    "wheelbeat_namespace": "named",
    "wheelbeat_broker_dedup": True,
    "beat_schedule": {
        "plain": {"task": "proj.record", "schedule": 1.0},
        "constant": {"task": "proj.record", "schedule": 1.0, "options": {"task_id": "nightly"}},
    },
}


def two_beats(project: ClaimProject, folder: Path) -> None:
    """Start two beats of one namespace, which send every run twice."""
    for name in ("first", "second"):
        project.beat("-s", str(folder / name))


def assert_copies_share_a_name(named: list[tuple[str, int, str]]) -> None:
    """Check (task id, fire time, name at the broker) of messages: one name for each run, another for each other run."""
    assert all(name == claim_key(task_id, fire_ms, 0, 0) for task_id, fire_ms, name in named)
    runs = {(task_id, fire_ms) for task_id, fire_ms, _ in named}
    assert len({name for _, _, name in named}) == len(runs)
    assert len({fire_ms for task_id, fire_ms in runs if task_id == "nightly"}) >= RUNS, (
        "a constant id is no constant name"
    )
    assert len(named) > len(runs), "there were copies"


def test_the_bytes_that_sqs_is_sent_name_each_run(tmp_path: Path) -> None:
    queue = "checks.fifo"
    with SqsEndpoint() as sqs, ClaimProject(tmp_path, {**sqs.conf(queue), **BEATS}) as project:
        two_beats(project, tmp_path)
        project.until(lambda: len(sqs.bodies) >= 2 * RUNS * COPIES, "messages of both beats")
        named = []
        for asked in map(json.loads, list(sqs.bodies)):
            assert asked["QueueUrl"].endswith(f"/{queue}")
            headers = json.loads(base64.b64decode(asked["MessageBody"]))["headers"]
            named.append((headers["id"], headers["wheelbeat_fire_ms"], asked["MessageDeduplicationId"]))
    assert_copies_share_a_name(named)


@pytest.mark.amqp
def test_the_header_that_rabbitmq_s_plug_in_reads_names_each_run(amqp_url: str, tmp_path: Path) -> None:
    with ClaimProject(tmp_path, {"broker_url": amqp_url, **BEATS}) as project:
        two_beats(project, tmp_path)
        named = []

        def enough() -> bool:
            named.extend(taken(project.app, str(project.conf["task_default_queue"])))
            return len(named) >= 2 * RUNS * COPIES

        wait_until(enough, "messages of both beats", timeout_s=60)
    assert_copies_share_a_name(named)


@pytest.mark.amqp
@pytest.mark.redis
def test_a_retry_is_another_message_to_rabbitmq_s_plug_in(amqp_url: str, redis_url: str, tmp_path: Path) -> None:
    """The retry inherits the headers of its run, and would be swallowed under the same name."""
    seen = """
    @app.task(bind=True, max_retries=2)
    def seen(self):
        journal("start", self.request, name=self.request.get("x-deduplication-header"))
        if self.request.retries < 2:
            raise self.retry(countdown=0)
    """
    conf = {"broker_url": amqp_url, "result_backend": redis_url}
    with ClaimProject(tmp_path, conf, extra=seen) as project:
        project.pool_worker()
        headers = {"x-deduplication-header": claim_key("run", 5, 0, 0)}
        project.publish("seen", "run", fire_ms=5, headers=headers)
        project.until(lambda: project.count("start")["run"] == 3, "both retries")
        names = [line.more["name"] for line in project.lines("start")]
        assert names == [claim_key("run", 5, 0, retries) for retries in range(3)]


def taken(app: Celery, queue: str) -> list[tuple[str, int, str]]:
    """Take all messages of ``queue``: task id, fire time, and the plug-in's header as RabbitMQ hands it out."""
    found: list[tuple[str, int, str]] = []
    with app.connection() as connection:
        channel: Any = connection.default_channel
        channel.queue_declare(queue, durable=True, auto_delete=False)
        while (message := channel.basic_get(queue, no_ack=True)) is not None:
            headers = message.headers
            found.append((headers["id"], headers["wheelbeat_fire_ms"], headers["x-deduplication-header"]))
    return found
