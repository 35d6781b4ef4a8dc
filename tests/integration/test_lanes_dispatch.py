"""From the engine through both lanes into a real Redis: who takes which lane, and that every run is accounted for."""

from __future__ import annotations

import functools
import json
import logging
import os
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import redis
from celery import Celery, Task
from celery.signals import after_task_publish, before_task_publish
from kombu.messaging import Producer
from services import PrivateRedis
from support.engine.definitions import Job, batch_of
from support.lanes.bench import MINUTE_MS, START_MS, FastBench, numbered
from support.lanes.fast_lane import make_app

from celery_wheelbeat.dispatch.celery_lane.lane import SUBMIT_MAX
from celery_wheelbeat.dispatch.fast_lane.lane import BLOCK_RUNS
from celery_wheelbeat.dispatch.messages.run_ids import RunIds
from celery_wheelbeat.dispatch.pending import STEP_SHIFT
from celery_wheelbeat.jobs.definitions import OVERLAP_SHIFT, ChangeBatch, DueBatch, Flag, Overlap
from celery_wheelbeat.jobs.identity import run_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_wheelbeat.dispatch.fast_lane.batches import Batch

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateRedis]:
    with PrivateRedis() as server:
        yield server


@pytest.fixture
def client(server: PrivateRedis) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        yield client


@pytest.fixture
def app(server: PrivateRedis, client: redis.Redis) -> Celery:
    return make_app(server.url)


@pytest.fixture
def bench(app: Celery) -> Iterator[FastBench]:
    with FastBench(app) as bench:
        yield bench


def messages(client: redis.Redis, key: str = "celery") -> list[Any]:
    """Headers of what is in a queue, oldest first."""
    return [json.loads(message)["headers"] for message in reversed(client.lrange(key, 0, -1))]


def test_every_run_is_sent_once_under_its_id(bench: FastBench, client: redis.Redis) -> None:
    bench.load(numbered(3000, bench.route()))
    assert bench.pass_minutes(2) == 6000
    bench.drain()
    assert bench.ledger.sent == 6000
    assert bench.slow_runs == 0
    found = messages(client)
    assert len(found) == len({one["id"] for one in found}) == 6000
    for one in found:
        number = int(one["argsrepr"].strip("[]"))
        assert one["id"] == run_id(f"monitor:{number}", one["wheelbeat_fire_ms"], "tests")
        assert one["periodic_task_name"] == f"job {number}"
    by_job: dict[str, list[int]] = {}
    for one in found:
        by_job.setdefault(one["periodic_task_name"], []).append(one["wheelbeat_fire_ms"])
    assert all(len(fires) == 2 and fires[1] - fires[0] == MINUTE_MS for fires in by_job.values())


@pytest.mark.parametrize("overlap", Overlap)
def test_messages_are_those_of_the_celery_lane(server: PrivateRedis, client: redis.Redis, overlap: Overlap) -> None:
    """The same runs through the other lane: everything but nonce, tag and thread is the same."""
    found = {}
    for slow_runs in (0, 20):
        client.flushall()
        with FastBench(make_app(server.url)) as bench:
            flags = overlap.value << OVERLAP_SHIFT
            bench.load(numbered(20, bench.route(options='{"expires": 30, "priority": 3}')), more_flags=flags)
            bench.pass_minutes()
            if slow_runs:
                before_task_publish.connect(listener)
            try:
                bench.drain()
            finally:
                before_task_publish.disconnect(listener)
            assert bench.slow_runs == slow_runs
        values = [json.loads(value) for value in client.lrange("celery\x06\x163", 0, -1)]
        for value in values:
            del value["headers"]["wheelbeat_nonce"], value["headers"]["expires"]
            del value["properties"]["delivery_tag"], value["properties"]["reply_to"]
        found[slow_runs] = {value["headers"]["id"]: json.dumps(value) for value in values}
    assert found[0] == found[20]
    assert len(found[0]) == 20
    jobs = {json.loads(value)["headers"].get("wheelbeat_job") for value in found[0].values()}
    assert jobs == ({None} if overlap is Overlap.ALLOW else {f"tests/monitor:{number}" for number in range(20)})


def test_a_job_that_must_not_overlap_shares_its_route_with_others(bench: FastBench, client: redis.Redis) -> None:
    route = bench.route()
    bench.load(numbered(10, route))
    bench.load(numbered(10, route, first=10), more_flags=Overlap.SKIP.value << OVERLAP_SHIFT)
    bench.load(numbered(10, route, first=20), more_flags=Overlap.QUEUE_ONE.value << OVERLAP_SHIFT)
    for _ in range(2):
        bench.pass_minutes()
        bench.drain()
    assert bench.slow_runs == 0
    output = {one["argsrepr"]: (one.get("wheelbeat_overlap"), one.get("wheelbeat_job")) for one in messages(client)}
    policies = [None] * 10 + ["skip"] * 10 + ["queue_one"] * 10
    assert output == {
        f"[{number}]": (policy, policy and f"tests/monitor:{number}") for number, policy in enumerate(policies)
    }


def test_another_namespace_is_in_the_next_message(bench: FastBench, client: redis.Redis) -> None:
    bench.load(numbered(1, bench.route()), more_flags=Overlap.SKIP.value << OVERLAP_SHIFT)
    for namespace in ("tests", 'an"other'):
        bench.lanes.name_runs(bench.rendering._replace(run_ids=RunIds(namespace)))
        bench.pass_minutes()
        bench.drain()
    assert [one["wheelbeat_job"] for one in messages(client)] == ["tests/monitor:0", 'an"other/monitor:0']
    assert bench.slow_runs == 0


def listener(**_kwargs: Any) -> None:
    """A receiver of a signal."""


@pytest.mark.parametrize("signal", [before_task_publish, after_task_publish])
def test_a_signal_connected_at_run_time_changes_the_lane_and_back(
    bench: FastBench, client: redis.Redis, signal: Any
) -> None:
    bench.load(numbered(10, bench.route()))
    bench.pass_minutes()
    bench.drain()
    assert bench.slow_runs == 0
    signal.connect(listener)
    try:
        bench.pass_minutes()
        bench.drain()
        assert bench.slow_runs == 10
        assert any(f"listener listens to {signal.name}" in reason for reason in bench.reasons())
        bench.pass_minutes()
        bench.drain()
        assert bench.slow_runs == 20
    finally:
        signal.disconnect(listener)
    bench.pass_minutes()
    bench.drain()
    assert bench.slow_runs == 20
    assert bench.reasons() == []
    assert client.llen("celery") == 40


def test_a_function_patched_at_run_time_changes_the_lane_and_back(
    bench: FastBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = Producer._prepare

    @functools.wraps(prepare)
    def patched(*args: Any, **kwargs: Any) -> Any:
        return prepare(*args, **kwargs)

    bench.load(numbered(10, bench.route()))
    for slow_runs in (0, 10, 10):
        if slow_runs and bench.slow_runs == 0:
            monkeypatch.setattr(Producer, "_prepare", patched)
        else:
            monkeypatch.undo()
        bench.pass_minutes()
        bench.drain()
        assert bench.slow_runs == slow_runs
    assert bench.fast.canary.differences == 0


def test_another_process_asks_for_everything_again(bench: FastBench) -> None:
    bench.load(numbered(10, bench.route()))
    bench.pass_minutes()
    bench.drain()
    fast = bench.fast
    fast.answers.reset_if_outdated()
    assert len(fast.forms.answers()) == 1
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forks in a process with threads: this child needs none of them
        child = os.fork()
    if not child:
        fast.answers.reset_if_outdated()
        os.write(writing, b"%d" % len(fast.forms.answers()))
        os._exit(0)
    os.close(writing)
    assert os.read(reading, 10) == b"0"
    os.close(reading)
    os.waitpid(child, 0)
    fast.answers.reset_if_outdated()
    assert len(fast.forms.answers()) == 1


class Sends(Task):
    """A task class with a way of its own to send."""

    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        return super().apply_async(*args, **kwargs)


@pytest.mark.parametrize(("dispatch", "slow_runs"), [("auto", 20), ("fast", 0)])
def test_what_is_bypassed_is_reported_at_the_start(
    app: Celery, client: redis.Redis, caplog: pytest.LogCaptureFixture, dispatch: str, slow_runs: int
) -> None:

    @app.task(name="lanes.sends", base=Sends, shared=False)
    def sends(x: Any, url: str | None = None) -> None: ...

    before_task_publish.connect(listener, sender="lanes.check")
    try:
        with FastBench(app, dispatch=dispatch) as bench:
            bench.load([*numbered(10, bench.route()), *numbered(10, bench.route("lanes.sends"), first=10)])
            bench.pass_minutes()
            bench.drain()
            assert bench.slow_runs == slow_runs
    finally:
        before_task_publish.disconnect(listener, sender="lanes.check")
    assert client.llen("celery") == 20
    output = [text for text in caplog.messages if "the fast lane ignores this hook" in text]
    if dispatch == "fast":
        assert [text.rpartition(": ")[2] for text in output] == [
            "sends.apply_async is overridden",
            f"{__name__}.listener listens to before_task_publish of lanes.check",
        ]
    else:
        assert output == []


def test_a_signal_for_another_task_changes_nothing(bench: FastBench) -> None:
    before_task_publish.connect(listener, sender="somebody.else")
    try:
        bench.load(numbered(10, bench.route()))
        bench.pass_minutes()
        bench.drain()
        assert bench.slow_runs == 0
    finally:
        before_task_publish.disconnect(listener, sender="somebody.else")


def test_new_routes_are_followed(bench: FastBench, app: Celery, client: redis.Redis) -> None:
    bench.load(numbered(10, bench.route()))
    bench.pass_minutes()
    bench.drain()
    app.conf.update(task_routes={"lanes.check": {"queue": "elsewhere"}})
    bench.pass_minutes()
    bench.drain()
    assert bench.slow_runs == 0
    assert (client.llen("celery"), client.llen("elsewhere")) == (10, 10)


def test_a_router_of_its_own_is_a_reason(server: PrivateRedis, client: redis.Redis) -> None:
    def route(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **kw: Any) -> dict[str, str]:
        return {"queue": "chosen"}

    with FastBench(make_app(server.url, task_routes=(route,))) as bench:
        bench.load(numbered(10, bench.route()))
        bench.pass_minutes()
        bench.drain()
        assert "has a router of its own" in bench.reasons()[0]
    assert client.llen("chosen") == 10


def test_entries_do_not_wait_for_the_fast_lane(bench: FastBench) -> None:
    """An entry is offered to the celery lane at once, whatever the other one is doing."""
    ids = np.array([-5, 3])
    zeros = np.zeros(2, np.uint32)
    bench.lanes.enqueue([DueBatch(0, zeros, ids, np.full(2, START_MS), zeros)])
    assert [pairs.ids.tolist() for pairs in bench.slow.backlog._offered] == [[-5]]
    assert [pairs.ids.tolist() for pairs in bench.fast.backlog._offered] == [[3]]


def test_a_job_with_one_run_waits_for_no_backlog_of_another(bench: FastBench, client: redis.Redis) -> None:
    """Neither in the backlog of the celery lane nor behind what its publisher already holds."""
    bench.load(numbered(4, bench.route()))

    def offer(ids: list[int], fires_ms: list[int]) -> None:
        zeros = np.zeros(len(ids), np.uint32)
        bench.ledger.expect(len(ids))
        bench.slow.backlog.offer(DueBatch(0, zeros, np.array(ids), np.array(fires_ms), zeros))

    bench.until(lambda: bench.slow.publisher.capacity() > 0, "the connection")
    offer([0, 1, 2] * 1_000, [START_MS + fire for fire in range(1_000) for _ in range(3)])
    for _ in range(4):
        bench.submit_due()
    offer([3], [START_MS + 2_000])
    bench.drain()
    jobs = [one["periodic_task_name"] for one in messages(client)]
    assert len(jobs) == 3_001
    assert jobs.index("job 3") <= SUBMIT_MAX + 2 * 3


def test_a_narrow_window_has_narrow_blocks(app: Celery, client: redis.Redis) -> None:
    with FastBench(app, window=10) as bench:
        sent: list[int] = []
        submit = bench.fast.publisher.submit

        def watched(batch: Batch) -> None:
            submit(batch)
            sent.append(bench.fast.publisher.health().in_flight)

        bench.fast.publisher.submit = watched  # type: ignore[method-assign]
        bench.load(numbered(95, bench.route()))
        bench.pass_minutes()
        bench.drain()
    assert max(sent) == 10
    assert client.llen("celery") == 95


def test_runs_with_large_arguments_return_to_the_queue_until_there_is_room(app: Celery, client: redis.Redis) -> None:
    """Two blocks may be on the way; a block of so large arguments has one run, so most runs return to the queue."""
    with FastBench(app, window=2 * BLOCK_RUNS) as bench:
        sent: list[int] = []
        submit = bench.fast.publisher.submit

        def watched(batch: Batch) -> None:
            sent.append(batch.size)
            submit(batch)

        bench.fast.publisher.submit = watched  # type: ignore[method-assign]
        route = bench.route()
        large = [
            replace(job, payload=b'[[%d], {"url": "%s"}]' % (job.id, b"u" * 600_000)) for job in numbered(9, route)
        ]
        bench.load([*large, *numbered(500, route, first=100)])
        for minute in (1, 2):
            bench.pass_minutes()
            bench.drain()
            assert client.llen("celery") == 509 * minute
    assert bench.slow_runs == 0
    assert sum(sent) == 2 * 509
    assert len(sent) >= 2 * 9


def test_at_full_rate_the_log_has_one_line_a_tick(bench: FastBench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "celery.beat")
    bench.send_log.install()
    bench.load(numbered(9000, bench.route()))
    bench.pass_minutes()
    bench.drain()
    bench.send_log.turn(1)
    assert [text for text in caplog.messages if "Sending" in text] == [
        "Scheduler: Sending 9000 due tasks (one line each up to 100)"
    ]
    bench.load(numbered(50, bench.route(), first=100_000, interval_ms=1000))
    caplog.clear()
    bench.engine.apply(ChangeBatch(batch_of([], bench.engine.crons), np.arange(9000)))
    for tick in (2, 3):
        bench.pass_second()
        bench.drain()
        bench.send_log.turn(tick)
    bench.send_log.remove()
    lines = [text for text in caplog.messages if "Sending" in text]
    assert len(lines) == 100
    assert all(text.startswith("Scheduler: Sending due task job 1000") for text in lines)


def test_what_needs_more_than_an_envelope_takes_the_celery_lane(bench: FastBench, client: redis.Redis) -> None:
    batch = bench.load(numbered(10, bench.route()), more_flags=Flag.ONE_OFF)
    bench.lanes.single_run_jobs.load(batch)
    bench.pass_minutes()
    bench.drain()
    assert bench.slow_runs == 10
    assert client.llen("celery") == 10


def test_expiry_at_the_next_fire_time_takes_the_celery_lane(bench: FastBench) -> None:
    bench.load(numbered(10, bench.route(expires_next=True)))
    bench.pass_minutes()
    bench.drain()
    assert bench.slow_runs == 10
    assert "expires at its next fire time" in bench.reasons()[0]


def test_an_oserror_of_user_code_while_an_envelope_is_made_concerns_its_route_alone(
    app: Celery, client: redis.Redis
) -> None:
    """Here an override that ``fast`` passes by; the connection has nothing to do with it."""

    class Elsewhere(Task):
        def apply_async(self, *args: Any, **kwargs: Any) -> Any:
            raise ConnectionRefusedError(111, "another service")

    @app.task(name="lanes.elsewhere", base=Elsewhere, shared=False)
    def elsewhere(x: Any, url: str | None = None) -> None: ...

    with FastBench(app, dispatch="fast") as bench:
        bench.load([*numbered(50, bench.route()), *numbered(5, bench.route("lanes.elsewhere"), first=100)])
        bench.pass_minutes()
        bench.drain()
        assert client.llen("celery") == 50
        assert bench.ledger.skipped["error"] == bench.slow_runs == 5
        assert bench.fast.publisher.epoch == 1
        assert "cannot be rendered: ConnectionRefusedError" in bench.reasons()[0]


def test_arguments_that_do_not_fit_the_task_concern_their_job_alone(bench: FastBench, client: redis.Redis) -> None:
    route = bench.route()
    bad = Job(id=5000, interval_ms=MINUTE_MS, route_index=route, payload=b'[[1, 2, 3, 4], {"nobody": 1}]')
    bench.load([*numbered(50, route), bad])
    bench.pass_minutes()
    bench.drain()
    assert bench.slow_runs == 1
    assert list(bench.fast.choice.unfit) == [5000]
    assert "TypeError" in bench.fast.choice.unfit[5000]
    assert bench.ledger.skipped["error"] == 1
    assert client.llen("celery") == 50
    bench.redefine(replace(bad, payload=b"[[1], {}]"))
    bench.pass_minutes()
    bench.drain()
    assert bench.slow_runs == 1
    assert client.llen("celery") == 101


def test_many_jobs_that_do_not_fit_cost_no_more_memory(bench: FastBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not remembered is found out again: the runs go the same way."""
    monkeypatch.setattr("celery_wheelbeat.dispatch.fast_lane.lane_choice.REMEMBERED_MAX", 3)
    route = bench.route()
    bad = [Job(id=at, interval_ms=MINUTE_MS, route_index=route, payload=b"[[1, 2, 3, 4], {}]") for at in range(90, 100)]
    bench.load([*numbered(50, route), *bad])
    for minutes in (1, 2):
        bench.pass_minutes()
        bench.drain()
        assert bench.slow_runs == 10 * minutes
        assert bench.ledger.skipped["error"] == 10 * minutes
        assert len(bench.fast.choice.unfit) == 3


def test_an_edit_is_in_the_next_message(bench: FastBench, client: redis.Redis) -> None:
    route = bench.route()
    bench.load(numbered(1, route))
    bench.pass_minutes()
    bench.drain()
    for number in range(3):
        bench.redefine(Job(id=0, interval_ms=MINUTE_MS, route_index=route, payload=b'[["v%d"], {}]' % number))
        bench.pass_minutes()
        bench.drain()
    assert [one["argsrepr"] for one in messages(client)] == ["[0]", "['v0']", "['v1']", "['v2']"]


def test_a_cache_that_is_full_changes_no_message(server: PrivateRedis, client: redis.Redis) -> None:
    big = [
        Job(id=number, interval_ms=MINUTE_MS, route_index=0, payload=b'[[%d], {"url": "%s"}]' % (number, b"x" * 5000))
        for number in range(600)
    ]
    with FastBench(make_app(server.url), envelope_bytes=1_048_576) as bench:
        assert bench.route() == 0
        bench.load(big)
        for _ in range(2):
            bench.pass_minutes()
            bench.drain()
        assert 0 < bench.fast._messages.bodies.resident_bytes <= 1_048_576
    found = messages(client)
    assert len(found) == 1200
    assert sorted(int(one["argsrepr"].strip("[]")) for one in found) == sorted(list(range(600)) * 2)


def test_removed_and_quarantined_jobs_are_skipped_with_their_reason(bench: FastBench, client: redis.Redis) -> None:
    batch = bench.load(numbered(10, bench.route()))
    bench.pass_minutes()
    bench.engine._remove(batch.ids[:3])
    bench.lanes.quarantined[5] = "for the test"
    bench.drain()
    assert (bench.ledger.skipped["removed"], bench.ledger.skipped["quarantined"]) == (3, 1)
    assert client.llen("celery") == 6


def test_fire_times_that_are_lived_again_have_their_own_ids(bench: FastBench, client: redis.Redis) -> None:
    bench.load(numbered(5, bench.route()))
    bench.pass_minutes()
    backlog = bench.fast.backlog
    for pairs in backlog._offered:
        pairs.tag[:] = 3 << STEP_SHIFT
    bench.drain()
    for one in messages(client):
        key = f"monitor:{one['argsrepr'].strip('[]')}"
        assert one["id"] == run_id(key, one["wheelbeat_fire_ms"], "tests", "~3")


def test_a_difference_to_celerys_message_is_found_and_followed(
    bench: FastBench, app: Celery, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    bench.load(numbered(10, bench.route()))
    bench.pass_minutes()
    bench.drain()
    app.amqp.argsrepr_maxsize = 1  # nothing that the guard looks at
    bench.fast.canary.due_s = 0.0
    bench.until(lambda: bench.fast.canary.differences == 1, "the comparison")
    assert "differs from Celery's" in caplog.text
    bench.pass_minutes()
    bench.drain()
    assert bench.slow_runs == 10
    assert [one["argsrepr"] for one in messages(client)][-1] == "[, ...]"


def test_an_outage_is_waited_for_and_drained(client: redis.Redis, server: PrivateRedis) -> None:
    with PrivateRedis() as broker:
        app = make_app(broker.url)
        with FastBench(app) as bench:
            bench.load(numbered(500, bench.route()))
            bench.pass_minutes()
            bench.drain()
            broker.kill()
            bench.pass_minutes()
            bench.until(lambda: not bench.lanes.health().connected, "the loss of the broker")
            for _ in range(3):
                bench.pass_minutes()
            bench.until(lambda: bench.ledger.skipped["backlog"] == 1000, "the newest run of each job is kept")
            broker.start()
            bench.drain()
            assert bench.ledger.sent == 1500
            assert bench.slow_runs == 0
        with redis.Redis.from_url(broker.url) as restarted:
            minutes = [(one["wheelbeat_fire_ms"] - START_MS - 1) // MINUTE_MS for one in messages(restarted)]
            assert minutes == sorted(minutes)
            assert [minutes.count(minute) for minute in range(5)] == [0, 500, 0, 0, 500]
