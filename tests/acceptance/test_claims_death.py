"""Workers die, brokers deliver again, stores are away: the elected run completes and its copies stay dropped."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

import amqp
import pytest
import redis
from kombu import Connection
from services import PrivateRedis, TcpProxy
from support.claims import ClaimProject, django_project, now_ms

from celery_wheelbeat.dispatch.messages.claim_headers import worker_headers

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.processes, pytest.mark.redis, pytest.mark.amqp]


@pytest.fixture
def project(redis_url: str, amqp_url: str, tmp_path: Path) -> ClaimProject:
    """Broker RabbitMQ, which delivers again at once; claims and results in Redis. No worker yet."""
    return ClaimProject(tmp_path, {"broker_url": amqp_url, "result_backend": redis_url})


def test_a_killed_worker_s_run_is_repeated_when_it_was_to_be_acknowledged_late(project: ClaimProject) -> None:
    run_id, fire_ms, gate = str(uuid4()), now_ms(), project.gate()
    with project:
        first = project.pool_worker()
        project.publish("late", run_id, fire_ms=fire_ms, args=(gate,))
        project.until(lambda: project.count("start")[run_id] == 1, "the first start")
        first.kill()
        project.open(gate)
        project.pool_worker()
        project.until(lambda: project.count("done")[run_id] == 1, "the end in the second worker")
        project.publish("late", run_id, fire_ms=fire_ms, args=(gate,))
        project.until(lambda: project.logged("dropped (other)") == 1, "the copy's end")
        assert project.count("start")[run_id] == 2


def test_a_killed_worker_s_run_is_lost_when_it_was_acknowledged_early_and_copies_do_not_heal_it(
    project: ClaimProject,
) -> None:
    run_id, fire_ms = str(uuid4()), now_ms()
    with project:
        first = project.pool_worker()
        project.publish("record", run_id, fire_ms=fire_ms, args=(60,))
        project.until(lambda: project.count("start")[run_id] == 1, "the first start")
        first.kill()
        project.pool_worker()
        project.publish("record", run_id, fire_ms=fire_ms, args=(60,))
        project.until(lambda: project.logged("dropped (other)") == 1, "the copy's end")
        assert project.count("start")[run_id] == 1


def test_a_killed_pool_process_s_run_is_repeated(project: ClaimProject) -> None:
    run_id, gate = str(uuid4()), project.gate()
    with project:
        project.pool_worker()
        project.publish("lost", run_id, args=(gate,))
        project.until(lambda: project.count("start")[run_id] == 1, "the first start")
        os.kill(project.lines("start")[0].pid, signal.SIGKILL)
        project.until(lambda: project.count("start")[run_id] == 2, "the start in another pool process")
        project.open(gate)
        project.until(lambda: project.count("done")[run_id] == 1, "the end in another pool process")
        assert project.count("start")[run_id] == 2


def test_the_message_of_a_killed_pool_process_runs_at_once_when_somebody_publishes_it_again(
    project: ClaimProject,
) -> None:
    run_id, fire_ms, headers, gate = str(uuid4()), now_ms(), {"wheelbeat_nonce": uuid4().hex}, project.gate()
    with project:
        project.pool_worker()
        project.publish("record", run_id, fire_ms=fire_ms, headers=headers, args=(gate,))
        project.until(lambda: project.count("start")[run_id] == 1, "the first start")
        os.kill(project.lines("start")[0].pid, signal.SIGKILL)
        project.until(lambda: project.logged("WorkerLostError") > 0, "the loss of the pool process")
        project.open(gate)
        project.publish("record", run_id, fire_ms=fire_ms, headers=headers, args=(gate,))
        project.until(lambda: project.count("done")[run_id] == 1, "the end in another pool process")
        assert project.logged("waits: its execution may still be running") == 0


def test_a_killed_worker_s_message_that_was_moved_to_another_queue_runs_once_its_claim_has_expired(
    project: ClaimProject, amqp_url: str
) -> None:
    run_id, gate, headers = str(uuid4()), project.gate(), {"wheelbeat_claim_ttl": 10}
    queue, other = project.conf["task_default_queue"], f"claims-{uuid4().hex[:8]}"
    with project:
        project.pool_worker("-Q", other)
        first = project.pool_worker()
        project.publish("short_late", run_id, args=(gate,), headers=headers)
        project.until(lambda: project.count("start")[run_id] == 1, "the first start")
        first.kill()
        with Connection(amqp_url) as connection:
            channel = connection.default_channel
            returned: list[Any] = []

            def taken() -> bool:
                returned.extend(message for message in [channel.basic_get(queue)] if message is not None)
                return bool(returned)

            project.until(taken, "the return of the message to its queue")
            assert returned[0].delivery_info["redelivered"]
            channel.basic_publish(amqp.Message(returned[0].body, **returned[0].properties), "", other)
            channel.basic_ack(returned[0].delivery_tag)
        project.until(
            lambda: project.logged("waits: its execution may still be running") > 0, "the wait in the second worker"
        )
        project.open(gate)
        project.until(lambda: project.count("done")[run_id] == 1, "the end in the second worker")
        assert project.count("start")[run_id] == 2


def test_a_copy_that_was_prefetched_and_comes_back_redelivered_does_not_run(project: ClaimProject) -> None:
    run_id, other, fire_ms, gate = str(uuid4()), str(uuid4()), now_ms(), project.gate()
    with project:
        busy = project.pool_worker("--prefetch-multiplier", "2", concurrency=1)
        project.publish("late", other, args=(gate,))
        project.until(lambda: project.count("start")[other] == 1, "the run that keeps the worker busy")
        project.publish("late", run_id, fire_ms=fire_ms, args=(gate,))
        busy.wait_for(f"proj.late[{run_id}] received")
        project.pool_worker(concurrency=4)
        project.publish("late", run_id, fire_ms=fire_ms, args=(gate,))
        project.until(lambda: project.count("start")[run_id] == 1, "the copy in the other worker")
        busy.kill()
        project.until(lambda: project.logged("dropped (other)") == 1, "the end of the redelivered copy")
        assert project.count("done")[run_id] == 0  # it was dropped while the elected one was running
        project.open(gate)
        project.until(lambda: project.count("done") == {run_id: 1, other: 1}, "the end of both runs")
        assert project.count("start") == {run_id: 1, other: 2}


def test_a_redelivery_beside_the_living_run_waits_where_the_task_is_exclusive(
    redis_url: str, amqp_url: str, tmp_path: Path
) -> None:
    alone, late = str(uuid4()), str(uuid4())
    server = urlsplit(amqp_url)
    with TcpProxy(server.port or 5672, server.hostname or "127.0.0.1") as proxy:
        through = server._replace(netloc=f"{server.username}:{server.password}@127.0.0.1:{proxy.port}").geturl()
        with ClaimProject(tmp_path, {"broker_url": through, "result_backend": redis_url}) as project:
            worker = project.pool_worker(concurrency=4)
            gate = project.gate()
            for task, run_id in (("alone", alone), ("late", late)):
                project.publish(task, run_id, args=(gate,))
            project.until(lambda: len(project.lines("start")) == 2, "both first starts")
            seen = len(worker.lines)
            proxy.cut()
            # RabbitMQ delivers both again to the new connection, while both runs are alive
            worker.wait_for(f"proj.late[{late}] received", after=seen)
            project.until(lambda: project.count("start")[late] == 2, "the second start of what is not exclusive")
            project.until(lambda: project.logged("waits: another execution holds the lease run:") > 0, "the wait")
            project.open(gate)
            project.until(lambda: project.count("done")[alone] == 1, "the end of the exclusive run")
            project.until(lambda: project.logged("dropped (finished)") == 1, "the end of its redelivery")
            assert project.count("start")[alone] == 1


def test_a_visibility_timeout_that_ends_beside_the_living_run_starts_no_second_one_where_the_task_is_exclusive(
    redis_url: str, tmp_path: Path
) -> None:
    alone, late = str(uuid4()), str(uuid4())
    conf = {
        "broker_url": redis_url,
        "result_backend": redis_url,
        "broker_transport_options": {"visibility_timeout": 1},
    }
    with ClaimProject(tmp_path, conf) as project:
        gate = project.gate()
        project.pool_worker(concurrency=4)
        for task, run_id in (("alone", alone), ("late", late)):
            project.publish(task, run_id, args=(gate,))
        project.until(lambda: len(project.lines("start")) == 2, "both first starts")

        def both_are_overdue() -> bool:
            with redis.Redis.from_url(redis_url) as broker:
                taken_s = [at_s for _, at_s in broker.zrange("unacked_index", 0, -1, withscores=True)]
            return time.time() > max(taken_s) + 1  # earlier tests may have left older ones

        project.until(both_are_overdue, "the end of the visibility timeout of both")
        project.pool_worker(concurrency=4)  # a worker that connects puts back overdue messages
        project.until(lambda: project.count("start")[late] > 1, "another start of what is not exclusive")
        project.until(lambda: project.logged("waits: another execution holds the lease run:") > 0, "the wait")
        assert project.count("done")[alone] == 0
        project.open(gate)
        project.until(lambda: project.count("done")[alone] == 1, "the end of the exclusive run")
        project.until(lambda: project.logged("dropped (finished)") > 0, "the end of its redelivery")
        assert project.count("start")[alone] == 1


def test_a_run_that_outlasts_the_time_for_which_its_claim_is_made_is_not_repeated(
    redis_url: str, amqp_url: str, tmp_path: Path
) -> None:
    alone, late, claim_s = str(uuid4()), str(uuid4()), 6
    fire_ms, headers = now_ms(), {"wheelbeat_claim_ttl": claim_s}
    server = urlsplit(amqp_url)
    with TcpProxy(server.port or 5672, server.hostname or "127.0.0.1") as proxy:
        through = server._replace(netloc=f"{server.username}:{server.password}@127.0.0.1:{proxy.port}").geturl()
        with ClaimProject(tmp_path, {"broker_url": through, "result_backend": redis_url}) as project:

            def until_forgotten(since_ms: float) -> None:
                end_ms = since_ms + 2 * 1_000 * claim_s
                project.until(lambda: now_ms() > end_ms, "what would have been the end of a claim")

            project.pool_worker(concurrency=4)
            gate = project.gate()
            for task, run_id in (("alone", alone), ("short_late", late)):
                project.publish(task, run_id, fire_ms=fire_ms, args=(gate,), headers=headers)
            project.until(lambda: len(project.lines("start")) == 2, "both starts")
            warned = project.logged("runs although")  # on a busy machine they may have been late themselves
            until_forgotten(max(line.at_ms for line in project.lines("start")))
            project.publish("short_late", late, fire_ms=fire_ms, args=(gate,), headers=headers)
            project.until(lambda: project.logged("dropped (other)") == 1, "the end of a copy that comes as late")
            proxy.cut()  # RabbitMQ delivers both again; the one that is exclusive has to wait
            project.until(lambda: project.logged("waits: another execution holds the lease run:") > 0, "the wait")
            until_forgotten(now_ms())
            project.open(gate)
            project.until(lambda: project.count("done")[alone] == 1, "the end of the exclusive run")
            project.until(lambda: project.logged("dropped (finished)") == 1, "the end of its redelivery")
            assert project.count("start")[alone] == 1
            assert project.logged("runs although") == warned


def test_a_main_process_that_was_stopped_says_that_its_run_has_lost_the_lease(redis_url: str, tmp_path: Path) -> None:
    headers = worker_headers("monitor:1", "tests", overlap="skip")
    first, second, third = (str(uuid4()) for _ in range(3))
    with ClaimProject(tmp_path, {"broker_url": redis_url, "result_backend": redis_url}) as project:
        gates = [project.gate(), project.gate()]
        stopped = project.pool_worker()
        project.publish("short", first, args=(gates[0],), headers=headers)
        project.until(lambda: project.count("start")[first] == 1, "the first run")
        with redis.Redis.from_url(redis_url) as store:
            lease = "wb:lease:job:tests/monitor:1"
            began = store.hget(lease, "until")
            project.until(lambda: store.hget(lease, "until") != began, "its lease, once prolonged")
            stopped.send(signal.SIGSTOP)  # the main process alone: the pool process goes on
            project.pool_worker("--prefetch-multiplier", "1", concurrency=2)

            def free() -> bool:
                seconds, micros = store.time()
                return seconds * 1000 + micros // 1000 > int(store.hget(lease, "until"))

            project.until(free, "the end of the lease")
            project.publish("short", second, args=(gates[1],), headers=headers)
            project.until(lambda: project.count("start")[second] == 1, "the second run beside the first")
            assert project.count("done")[first] == 0
            stopped.send(signal.SIGCONT)
            stopped.wait_for("an execution lost the lease job:tests/monitor:1 while running")
            project.open(gates[0])
            project.until(lambda: project.count("done")[first] == 1, "the end of the first run")
            # which takes nothing from the one that came after it
            project.publish("short", third, headers=headers)
            project.until(lambda: project.logged("skipped: another execution holds the lease job:") == 1, "the skip")
            project.open(gates[1])
            project.until(lambda: project.count("done")[second] == 1, "the end of the second run")
            fences = {line.id: line.more["fence"] for line in project.lines("start")}
            assert fences[second] > fences[first]
            assert third not in fences


def test_a_worker_that_is_asked_to_end_prolongs_the_lease_of_the_run_that_it_waits_for(
    redis_url: str, tmp_path: Path
) -> None:
    headers = worker_headers("monitor:1", "tests", overlap="skip")
    first, second = (str(uuid4()) for _ in range(2))
    conf = {"broker_url": redis_url, "result_backend": redis_url}
    with ClaimProject(tmp_path, conf) as project, redis.Redis.from_url(redis_url) as store:
        gate = project.gate()
        ending = project.pool_worker()
        project.publish("short", first, args=(gate,), headers=headers)
        project.until(lambda: project.count("start")[first] == 1, "the first run")
        ending.send(signal.SIGTERM)
        ending.wait_for("Warm shutdown")

        def ends_ms() -> int:
            return int(store.hget("wb:lease:job:tests/monitor:1", "until") or 0)

        asked_to_end_ms = ends_ms()
        project.until(lambda: now_ms() > asked_to_end_ms + 500, "what would have been the end of the lease")
        project.pool_worker()
        project.publish("short", second, headers=headers)
        project.until(lambda: project.logged("skipped: another execution holds the lease") == 1, "the skip")
        project.open(gate)
        assert ending.wait() == 0
        assert project.count("done") == {first: 1}


def test_an_exclusive_run_is_taken_over_once_its_lease_has_ended(project: ClaimProject) -> None:
    run_id, gate = str(uuid4()), project.gate()
    with project:
        first = project.pool_worker()
        project.publish("alone", run_id, args=(gate,))
        project.until(lambda: project.count("start")[run_id] == 1, "the first start")
        first.kill()
        project.open(gate)
        project.pool_worker()
        project.until(lambda: project.count("done")[run_id] == 1, "the end in the second worker")
        first_start, second_start = project.lines("start")
        assert second_start.at_ms - first_start.at_ms >= 2_500  # the lease is 3 s, and nobody prolongs it
        assert second_start.more["fence"] > first_start.more["fence"]


def test_a_store_that_is_away_opens_or_closes_each_task_and_is_found_again(amqp_url: str, tmp_path: Path) -> None:
    fire_ms = now_ms()
    with (
        PrivateRedis() as store,
        ClaimProject(tmp_path, {"broker_url": amqp_url, "wheelbeat_dedup_url": store.url}) as project,
    ):
        project.pool_worker(concurrency=2)
        first = project.publish_copies("record", 2, 2)
        project.until_settled(4)
        store.stop()
        opened = project.publish_copies("record", 4, 2)
        closed = [str(uuid4()) for _ in range(2)]
        for run_id in closed * 2:
            project.publish("closed", run_id, fire_ms=fire_ms)
        project.until(lambda: all(project.count("done")[run_id] == 2 for run_id in opened), "open: every copy runs")
        assert not any(project.count("start")[run_id] for run_id in closed)
        assert 1 <= project.logged("does not answer") <= 2  # once per pool process and outage, not per task
        store.start()
        project.until(lambda: all(project.count("done")[run_id] == 1 for run_id in closed), "closed: runs afterwards")
        project.until(lambda: project.logged("dropped (other)") == 2 + len(closed), "the end of the copies")
        assert [project.count("start")[run_id] for run_id in first + closed] == [1] * 4


def test_a_worker_starts_while_its_store_is_away(amqp_url: str, tmp_path: Path) -> None:
    with PrivateRedis() as store:
        store.stop()
        with ClaimProject(tmp_path, {"broker_url": amqp_url, "wheelbeat_dedup_url": store.url}) as project:
            project.pool_worker()
            assert project.logged("this worker starts without it") == 1
            store.start()
            project.until(lambda: elects(project), "elections")


def elects(project: ClaimProject) -> bool:
    """Publish two copies of a new run and say whether one was dropped."""
    dropped = project.logged("dropped (other)")
    finished = len(project.lines("done"))
    project.publish_copies("record", 1, 2)
    project.until(
        lambda: len(project.lines("done")) + project.logged("dropped (other)") >= finished + dropped + 2, "both"
    )
    return project.logged("dropped (other)") == dropped + 1


KILLS = 5
STORES = {"redis": "redis_url", "postgresql": "postgres_url"}


def project_for_kills(pair: str, request: pytest.FixtureRequest, folder: Path) -> ClaimProject:
    """Return a project whose claims and broker are those of ``pair``; Redis delivers again after three seconds."""
    store, broker = pair.split("+")
    conf: dict[str, Any] = {"broker_url": request.getfixturevalue({"rabbitmq": "amqp_url"}.get(broker, "redis_url"))}
    if broker == "redis":
        conf["broker_transport_options"] = {"visibility_timeout": 3}
    match store:
        case "django-db":
            return django_project(folder, request.getfixturevalue("postgres_url"), **conf)
        case "sqlite":
            return ClaimProject(folder, {**conf, "wheelbeat_dedup_url": f"sqlite:///{folder}/claims.sqlite3"})
    return ClaimProject(folder, {**conf, "wheelbeat_dedup_url": request.getfixturevalue(STORES[store])})


@pytest.mark.soak
@pytest.mark.postgres
@pytest.mark.parametrize(
    "pair",
    ["redis+redis", "redis+rabbitmq", "postgresql+rabbitmq", "postgresql+redis", "sqlite+rabbitmq", "django-db+redis"],
)
def test_2000_runs_in_three_copies_while_workers_are_killed(
    pair: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Not with files as a broker: they forget what a killed worker had taken, with or without copies."""
    count, pools = 2_000, 2
    with project_for_kills(pair, request, tmp_path) as project:
        workers = [project.pool_worker(concurrency=2) for _ in range(pools)]
        ids = project.publish_copies("late", count, 3, args=(0.01,))
        for kill in range(1, KILLS + 1):
            project.until(
                lambda share=kill / (KILLS + 1): len(project.count("done")) >= share * count, "progress", timeout_s=300
            )
            workers.pop(0).kill()
            workers.append(project.pool_worker(concurrency=2))
        project.until(lambda: set(project.count("done")) == set(ids), "the end of every run", timeout_s=600)
        starts = project.count("start")
        # what was executing when its worker was killed is repeated, at most once per pool process and kill
        assert sum(starts.values()) - count <= KILLS * 2
        assert max(starts.values()) <= 1 + KILLS
        elected = {(line.id, line.more["nonce"]) for line in project.lines("start")}
        assert len(elected) == count, "what runs again is the elected message, never a copy of it"
        begun: set[str] = set()
        for line in project.lines("start"):
            assert line.id not in begun or line.more["redelivered"], "it runs again because the broker says so"
            begun.add(line.id)
