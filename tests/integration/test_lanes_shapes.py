"""Monitors of many kinds: those that differ in own values alone share an envelope, and no run waits for others."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import amqp
import numpy as np
import pytest
import redis
from kombu import Exchange, Queue
from services import PrivateRedis
from support.engine.definitions import Job
from support.lanes.bench import MINUTE_MS, START_MS, FastBench, numbered
from support.lanes.fast_lane import make_app

from celery_wheelbeat.beat.assembly import fast_lane as fast_parts
from celery_wheelbeat.beat.supervision import RouteSweep
from celery_wheelbeat.dispatch.fast_lane.envelope_registry import EnvelopeRegistry
from celery_wheelbeat.dispatch.fast_lane.lane_choice import QUESTIONS_MAX
from celery_wheelbeat.dispatch.fast_lane.places import queue_registry
from celery_wheelbeat.dispatch.lane_rules import TOO_MANY_FORMS, UNFIT
from celery_wheelbeat.dispatch.messages.envelope_maker import MOVED
from celery_wheelbeat.jobs.definitions import OVERLAP_SHIFT, ChangeBatch, Overlap
from celery_wheelbeat.schedules.intervals import INTERVAL_MAX_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery import Celery
    from services import PrivateRabbit

JOBS = 300


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
def bench(server: PrivateRedis, client: redis.Redis) -> Iterator[FastBench]:
    with FastBench(make_app(server.url)) as bench:
        yield bench


def job(number: int, route: int, **columns: Any) -> Job:
    return Job(id=number, interval_ms=MINUTE_MS, route_index=route, payload=b"[[%d], {}]" % number, **columns)


def with_headers(bench: FastBench, count: int = JOBS) -> list[Job]:
    """Jobs with a customer each in a header."""
    routes = (bench.route(options=json.dumps({"headers": {"customer": f"ü{at}", "n": at}})) for at in range(count))
    return [job(number, route) for number, route in enumerate(routes)]


def headers_in(client: redis.Redis, key: str = "celery") -> list[dict[str, Any]]:
    return [json.loads(message)["headers"] for message in client.lrange(key, 0, -1)]


def questions(bench: FastBench, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list in which every form will stand that the sender is asked for."""
    asked: list[Any] = []
    ask = bench.fast.publisher.ask
    monkeypatch.setattr(bench.fast.publisher, "ask", lambda form, *rest: (asked.append(form), ask(form, *rest)))
    return asked


@pytest.mark.redis
@pytest.mark.parametrize("overlap", Overlap)
def test_each_job_has_its_own_headers_and_all_have_one_envelope(
    bench: FastBench, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, overlap: Overlap
) -> None:
    asked = questions(bench, monkeypatch)
    bench.load(with_headers(bench), more_flags=overlap.value << OVERLAP_SHIFT)
    for _ in range(2):
        bench.pass_minutes()
        bench.drain()
    assert len(asked) == 1
    assert bench.slow_runs == 0
    found = sorted((one["argsrepr"], one["customer"], one["n"], one.get("wheelbeat_job")) for one in headers_in(client))
    key = None if overlap is Overlap.ALLOW else "tests/monitor:{}"
    expected = [(f"[{at}]", f"ü{at}", at, key and key.format(at)) for at in range(JOBS)]
    assert found == sorted(2 * expected)


def options_of(number: int) -> dict[str, Any]:
    """Options of which each value is a job's own."""
    link = {"task": "lanes.check", "args": [number], "kwargs": {}, "options": {}, "subtask_type": None}
    return {
        "headers": {"customer": f"ü{number}", "n": number},
        "shadow": f'check "{number}"',
        "link": link if number % 2 else [link, link],
        "link_error": [link],
        "reply_to": f"somebody{number}",
        "task_id": f"always-{number}",
        "routing_key": f"without.effect.{number}",
    }


@pytest.mark.redis
@pytest.mark.parametrize("overlap", [Overlap.ALLOW, Overlap.SKIP])
def test_each_job_has_its_own_options_and_all_have_one_envelope(
    bench: FastBench, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, overlap: Overlap
) -> None:
    asked = questions(bench, monkeypatch)
    routes = [bench.route(options=json.dumps(options_of(at), sort_keys=True)) for at in range(JOBS)]
    bench.load([job(at, route) for at, route in enumerate(routes)], more_flags=overlap.value << OVERLAP_SHIFT)
    for cut in (False, False, True):
        if cut:
            client.client_kill_filter(skipme=True)
        bench.pass_minutes()
        bench.drain()
    assert len(asked) == bench.fast.publisher.epoch > 1, "one question for each connection"
    assert bench.slow_runs == 0
    found = sorted((one["shadow"], one["id"], one["root_id"], one["argsrepr"]) for one in headers_in(client))
    assert found == sorted(3 * [(f'check "{at}"', f"always-{at}", f"always-{at}", f"[{at}]") for at in range(JOBS)])


@pytest.mark.redis
def test_messages_are_those_of_the_celery_lane(server: PrivateRedis, client: redis.Redis) -> None:
    found = {}
    for dispatch in ("auto", "celery lane"):
        client.flushall()
        with FastBench(make_app(server.url)) as bench:
            routes = [bench.route(options=json.dumps(options_of(at), sort_keys=True)) for at in range(20)]
            bench.load([job(at, route) for at, route in enumerate(routes)])
            bench.pass_minutes()
            if dispatch != "auto":
                monkey = bench.fast.choice
                monkey.unfit = dict.fromkeys(range(20), UNFIT)
            bench.drain()
            assert bench.slow_runs == (0 if dispatch == "auto" else 20)
        values = [json.loads(value) for value in client.lrange("celery", 0, -1)]
        for value in values:
            del value["headers"]["wheelbeat_nonce"], value["properties"]["delivery_tag"]
        found[dispatch] = {value["headers"]["id"]: json.dumps(value) for value in values}
    assert found["auto"] == found["celery lane"]
    assert len(found["auto"]) == 20


def distinct(number: int) -> dict[str, Any]:
    """Options of which every value, and every name of a header, is a job's own."""
    return {
        "expires": 90_000 + number / 8,
        "headers": {f"x-{number}": number},
        "priority": number % 256,
        "soft_time_limit": number / 4,
        "time_limit": number,
        "type": f"check {number}",
    }


@pytest.mark.redis
def test_thousands_of_option_sets_are_one_form_and_one_question(
    bench: FastBench, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, count = questions(bench, monkeypatch), 3_000
    routes = [bench.route(options=json.dumps(distinct(at), sort_keys=True)) for at in range(count)]
    bench.load([job(at, route) for at, route in enumerate(routes)])
    for cut in (False, True):
        if cut:
            client.client_kill_filter(skipme=True)
        bench.pass_minutes()
        bench.drain()
    assert len(asked) == bench.fast.publisher.epoch, "one question for each connection"
    assert bench.slow_runs == 0
    found = []
    for level, low in (("", 0), ("\x06\x163", 3), ("\x06\x166", 6), ("\x06\x169", 9)):
        for message in map(json.loads, client.lrange(f"celery{level}", 0, -1)):
            headers, properties = message["headers"], message["properties"]
            number = int(headers["argsrepr"][1:-1])
            assert min(properties["priority"], 9) // 3 * 3 == low
            assert headers[f"x-{number}"] == number
            left = datetime.fromisoformat(headers["expires"]) - datetime.now(UTC)
            assert 0 < 90_000 + number / 8 - left.total_seconds() < 600
            shown = (properties["expiration"], properties["priority"], properties["type"], *headers["timelimit"])
            options = distinct(number)
            expires = str(int(options["expires"] * 1000))
            assert shown == (expires, number % 256, f"check {number}", number, number / 4)
            found.append(number)
    assert sorted(found) == sorted(2 * list(range(count)))


@pytest.mark.redis
def test_instants_of_expiry_are_one_form_and_those_that_have_passed_are_skipped(
    bench: FastBench, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One-off runs have an instant each: ``later`` stores a relative expiry as one."""
    asked, now = questions(bench, monkeypatch), datetime.now(UTC).replace(microsecond=0)
    instants = [(now + timedelta(days=at % 40 - 4, microseconds=at % 7 * 1_000)).isoformat() for at in range(JOBS)]
    routes = [bench.route(options=json.dumps({"expires": one})) for one in instants]
    bench.load([job(at, route) for at, route in enumerate(routes)])
    bench.pass_minutes()
    bench.drain()
    assert (len(asked), bench.slow_runs) == (1, 0)
    found = {}
    for message in map(json.loads, client.lrange("celery", 0, -1)):
        instant = message["headers"]["expires"]
        found[int(message["headers"]["argsrepr"][1:-1])] = instant
        left_s = (datetime.fromisoformat(instant) - now).total_seconds()
        assert 0 < left_s - int(message["properties"]["expiration"]) / 1000 < 60
    assert found == {at: one for at, one in enumerate(instants) if at % 40 > 4}
    assert bench.ledger.skipped["expired"] == bench.ledger.skipped.total() == JOBS - len(found)


def declarations(bench: FastBench, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list in which every queue will stand that the sender is asked to declare."""
    declared: list[str] = []
    declare = bench.fast.publisher._wire.declare
    monkeypatch.setattr(
        bench.fast.publisher._wire, "declare", lambda queue: (declared.append(queue), declare(queue))[1]
    )
    return declared


@pytest.mark.redis
def test_hundreds_of_queues_are_one_form_and_each_is_declared_once(
    bench: FastBench, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, declared = questions(bench, monkeypatch), declarations(bench, monkeypatch)
    options = [{"queue": f"tenant-{at}", "priority": at % 10} for at in range(JOBS)]
    routes = [bench.route(options=json.dumps(one, sort_keys=True)) for one in options]
    bench.load([job(at, route) for at, route in enumerate(routes)])
    for cut in (False, False, True):
        if cut:
            client.client_kill_filter(skipme=True)
        bench.pass_minutes()
        bench.drain()
    assert len(asked) == bench.fast.publisher.epoch > 1
    assert sorted(declared) == sorted(one["queue"] for one in options), "once, also after a reconnect"
    assert bench.slow_runs == 0
    for at, one in enumerate(options):
        level = at % 10 // 3 * 3
        messages = client.lrange(f"{one['queue']}\x06\x16{level}" if level else one["queue"], 0, -1)
        assert [json.loads(message)["headers"]["argsrepr"] for message in messages] == 3 * [f"[{at}]"]
        assert client.exists(f"_kombu.binding.{one['queue']}")
    known = {*bench.scheduler.app.amqp.queues}
    assert known == {"celery", *(one["queue"] for one in options)}, "no invented queue is left"
    assert bench.fast.canary.differences == 0


@pytest.mark.redis
def test_while_queues_are_declared_other_runs_do_not_wait(
    bench: FastBench, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    withheld: list[tuple[Any, Any]] = []
    declare = bench.fast.publisher.declare
    monkeypatch.setattr(bench.fast.answers._queues, "_declare", lambda *question: withheld.append(question))
    late = [bench.route(options=json.dumps({"queue": f"late-{at}"})) for at in range(20)]
    bench.load([*numbered(100, bench.route()), *(job(1_000 + at, route) for at, route in enumerate(late))])
    for minute in (1, 2):
        bench.pass_minutes()
        bench.until(lambda minute=minute: client.llen("celery") == 100 * minute, "the runs of the known queue")
        assert bench.fast.answers.waiting == 20 * minute
    assert sum(len(queues) for _, queues in withheld) == 20, "asked once, however many runs wait"
    for question in withheld:
        declare(*question)
    bench.drain()
    assert [client.llen(f"late-{at}") for at in range(20)] == [2] * 20
    assert (bench.fast.answers.waiting, bench.slow_runs) == (0, 0)


@pytest.mark.redis
def test_more_new_queues_than_may_be_open_take_the_celery_lane_meanwhile(
    bench: FastBench, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_registry, "OPEN_MAX", 16)
    routes = [bench.route(options=json.dumps({"queue": f"new-{at}"})) for at in range(100)]
    bench.load([job(at, route) for at, route in enumerate(routes)])
    for _ in range(8):
        bench.pass_minutes()
        bench.drain()
    assert 0 < bench.slow_runs < 8 * 100
    before = bench.slow_runs
    bench.pass_minutes()
    bench.drain()
    assert bench.slow_runs == before, "every queue is known by now"
    assert [client.llen(f"new-{at}") for at in range(100)] == [9] * 100


@pytest.mark.amqp
def test_queues_are_a_jobs_own_on_rabbitmq_and_a_deleted_one_is_declared_again(
    private_rabbit: PrivateRabbit, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, count = private_rabbit, 40
    app = make_app(server.url, task_queues=[Queue("celery"), Queue("topical", Exchange("t", "topic"), "a.#")])
    with FastBench(app) as bench:
        asked, declared = questions(bench, monkeypatch), declarations(bench, monkeypatch)
        options: list[dict[str, Any]] = [{"queue": f"tenant-{'ü' * at}"} for at in range(count)]
        options.append({"queue": "topical", "routing_key": "a.b"})
        bench.load([job(at, bench.route(options=json.dumps(one))) for at, one in enumerate(options)])
        bench.pass_minutes()
        bench.drain()
        with amqp.Connection(f"127.0.0.1:{server.port}") as connection:
            connection.channel().queue_delete("tenant-ü")
        bench.pass_minutes()
        bench.drain()
        assert len(asked) == 2, "one for all plain queues, one for the queue of the configuration"
        assert sorted(declared) == sorted([*(one["queue"] for one in options[:-1]), "tenant-ü"])
        assert bench.slow_runs == 0
        assert bench.ledger.sent == 2 * len(options)
    with amqp.Connection(f"127.0.0.1:{server.port}") as connection:
        channel = connection.channel()
        for at, one in enumerate(options):
            times = 1 if one["queue"] == "tenant-ü" else 2
            found = [channel.basic_get(one["queue"], no_ack=True).headers["argsrepr"] for _ in range(times)]
            assert found == [f"[{at}]"] * times
            assert channel.basic_get(one["queue"], no_ack=True) is None


@pytest.mark.redis
def test_runs_of_a_form_without_an_answer_wait_alone(
    bench: FastBench, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the whole lane waited for each form that was asked for."""
    withheld: list[Callable[[], None]] = []
    ask = bench.fast.publisher.ask

    def answer_later(form: Any, *rest: Any) -> None:
        if "late" in form.route.options:
            withheld.append(lambda: ask(form, *rest))
        else:
            ask(form, *rest)

    monkeypatch.setattr(bench.fast.publisher, "ask", answer_later)
    late = bench.route(options='{"queue": "late", "user_id": "late"}')
    bench.load([*numbered(100, bench.route()), *numbered(10, late, first=1000)])
    for minute in (1, 2, 3):
        bench.pass_minutes()
        bench.until(lambda minute=minute: client.llen("celery") == 100 * minute, "the runs of the known form")
        assert client.llen("late") == 0
        assert bench.fast.answers.waiting == 10 * minute
    assert len(withheld) == 1, "asked once, however many runs wait"
    withheld[0]()
    bench.drain()
    assert client.llen("late") == 30
    assert bench.fast.answers.waiting == 0


@pytest.mark.redis
def test_while_many_kinds_are_new_their_runs_do_not_wait_for_each_other(
    bench: FastBench, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the last of a thousand kinds waited for all others to be learnt, after each reconnect again."""
    many = 3 * QUESTIONS_MAX
    asked = questions(bench, monkeypatch)
    ask, withheld = bench.fast.publisher.ask, []
    monkeypatch.setattr(bench.fast.publisher, "ask", lambda *question: withheld.append(question))
    bench.load([job(at, bench.route(options=json.dumps({"user_id": f"a{at}"}))) for at in range(many)])
    bench.pass_minutes()
    bench.until(lambda: bench.ledger.sent == many - QUESTIONS_MAX, "the runs that wait for no answer")
    assert bench.fast.answers.waiting == QUESTIONS_MAX
    assert bench.slow_runs == many - QUESTIONS_MAX
    assert len(withheld) == many, "asked all the same"
    for question in withheld:
        ask(*question)
    bench.drain()
    bench.until(lambda: len(bench.fast.forms.answers()) == many, "every answer")
    bench.pass_minutes()
    bench.drain()
    assert len(asked) == many
    assert bench.slow_runs == many - QUESTIONS_MAX, "no more"
    assert client.llen("celery") == 2 * many


@pytest.mark.redis
def test_an_answer_to_a_question_from_before_a_change_counts_for_nothing(
    bench: FastBench, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    ask = bench.fast.publisher.ask
    monkeypatch.setattr(bench.fast.publisher, "ask", lambda *question: asked.append(question))
    bench.load(numbered(1, bench.route()))
    bench.pass_minutes()
    bench.until(lambda: bool(asked), "the question")
    fast = bench.fast
    fast.answers._guard = "somebody connected a signal"
    fast.answers.reset_if_outdated()
    ask(*asked[0])
    bench.until(lambda: len(asked) == 2, "the second question")
    assert not fast.forms.answers()
    ask(*asked[1])
    bench.drain()
    assert len(fast.forms.answers()) == 1


@pytest.mark.redis
def test_after_a_reconnect_one_question_is_asked_for_all(
    bench: FastBench, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = questions(bench, monkeypatch)
    bench.load(with_headers(bench))
    bench.pass_minutes()
    bench.drain()
    epoch = bench.fast.publisher.epoch
    client.client_kill_filter(skipme=True)
    bench.pass_minutes()
    bench.drain()
    assert bench.fast.publisher.epoch > epoch
    assert len(asked) == 1 + bench.fast.publisher.epoch - epoch
    assert len({one["id"] for one in headers_in(client)}) == 2 * JOBS


@pytest.mark.redis
def test_more_kinds_than_there_may_be_take_the_celery_lane_and_say_so(
    server: PrivateRedis, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_parts, "EnvelopeRegistry", partial(EnvelopeRegistry, most=5))
    with FastBench(make_app(server.url)) as bench:
        bench.load([job(at, bench.route(options=json.dumps({"user_id": f"a{at}"}))) for at in range(20)])
        for _ in range(2):
            bench.pass_minutes()
            bench.drain()
        assert bench.slow_runs == 30
        kinds, ones = np.arange(20) << 2, np.ones(20, np.int64)
        answers = [answer for answer, _ in bench.fast.forms.tally(kinds, ones)]
        assert answers.count(TOO_MANY_FORMS) == 1, "together"
        found = [json.loads(message)["properties"]["user_id"] for message in client.lrange("celery", 0, -1)]
        assert sorted(found) == sorted(2 * [f"a{at}" for at in range(20)])


@pytest.mark.redis
def test_edits_of_headers_leave_nothing_behind(bench: FastBench, client: redis.Redis) -> None:
    sweep = RouteSweep(bench.engine)
    for revision in range(60):
        route = bench.route(options=json.dumps({"headers": {"revision": revision}, "queue": f"q{revision % 2}"}))
        bench.redefine(job(0, route))
        bench.pass_minutes()
        bench.drain()
        sweep.scan()
        sweep.scan()
    assert len(bench.engine.routes) <= 4
    assert len(bench.fast.forms.answers()) <= 2
    assert [one["revision"] for one in reversed(headers_in(client, "q1"))] == list(range(1, 60, 2))
    bench.engine.apply(ChangeBatch(bench.load([]), np.array([0])))
    sweep.scan()
    sweep.scan()
    assert not bench.fast.forms.answers()


@pytest.mark.redis
@pytest.mark.parametrize("overlap", Overlap)
def test_the_longest_intervals_fire_and_keep_their_overlap_policy(
    bench: FastBench, client: redis.Redis, overlap: Overlap
) -> None:
    """Once the interval ran over into the policy: the beat ended, or another policy was sent."""
    years = [year * 365 * 86_400_000 for year in (34, 35, 36, 70, 71)]
    anchor_ms = START_MS + 30_000
    jobs = [
        Job(id=number, interval_ms=interval_ms, anchor_ms=anchor_ms, offset_ms=0, route_index=bench.route())
        for number, interval_ms in enumerate([*years, INTERVAL_MAX_MS])
    ]
    bench.load(
        [Job(**{**vars(one), "payload": b"[[1], {}]"}) for one in jobs], more_flags=overlap.value << OVERLAP_SHIFT
    )
    bench.pass_minutes()
    bench.drain()
    policy = None if overlap is Overlap.ALLOW else overlap.name.lower()
    assert [one.get("wheelbeat_overlap") for one in headers_in(client)] == [policy] * len(jobs)


@pytest.mark.redis
def test_options_that_cannot_be_read_concern_their_job_alone(bench: FastBench, client: redis.Redis) -> None:
    broken = '{"headers": {"customer": {"__type__": "uuid", "__value__": "none"}}}'
    bench.load([job(0, bench.route(options=broken)), *with_headers(bench, 10)[1:]])
    bench.load([job(100, bench.route(options='{"headers": {"customer": 1, "n": 2}}'))])
    bench.pass_minutes()
    bench.drain()
    assert sorted(one["argsrepr"] for one in headers_in(client)) == sorted(
        [*(f"[{at}]" for at in range(1, 10)), "[100]"]
    )


def taken_in(bench: FastBench, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list in which the difference of every comparison will stand."""
    compared: list[str] = []
    take_in = bench.fast.canary.apply
    monkeypatch.setattr(bench.fast.canary, "apply", lambda one: (compared.append(one.difference), take_in(one)))
    return compared


KEYS = {"eu.{}": ["eu"], "as.{}": ["as"], "eu.as.{}": ["both", "eu"], "nobody.{}": []}


@pytest.mark.redis
def test_routing_keys_are_a_jobs_own_on_redis(
    server: PrivateRedis, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that lead to one list share an envelope; the others take the celery lane, each by itself."""
    topics = Exchange("topics", "topic")
    bindings = {"eu": "eu.#", "as": "as.*", "both": "eu.as.*"}
    queues = [Queue("celery"), *(Queue(name, topics, key) for name, key in bindings.items())]
    app = make_app(server.url, task_queues=queues)
    with app.connection_for_write() as connection:
        for queue in queues:
            queue(connection.default_channel).declare()
    with FastBench(app) as bench:
        asked = questions(bench, monkeypatch)
        keys = [key.format(at) for at in range(20) for key in KEYS]
        options = [{"queue": "eu", "routing_key": key, "priority": 3} for key in keys]
        bench.load([job(at, bench.route(options=json.dumps(one))) for at, one in enumerate(options)])
        for _ in range(2):
            bench.pass_minutes()
            bench.drain()
        assert len(asked) == 1
        assert bench.slow_runs == 2 * 2 * 20
        compared = taken_in(bench, monkeypatch)
        bench.fast.canary.due_s = 0
        bench.until(lambda: compared == [""], "a comparison")
        with app.connection_for_write() as connection:
            Queue("late", topics, "nobody.#")(connection.default_channel).declare()
        bench.pass_minutes()
        bench.drain()
        bench.fast.canary.due_s = 0
        bench.until(lambda: compared[1:] == [MOVED], "a comparison")
        bench.pass_minutes()
        bench.drain()
        assert len(asked) == 2
        assert bench.slow_runs == (3 + 3 + 1) * 20, "once for nobody's keys, which have a list now"
        assert client.llen("late\x06\x163") == 2 * 20
        assert bench.fast.canary.differences == 0
        client.delete("late\x06\x163")
    for name in bindings:
        lists = client.lrange(f"{name}\x06\x163", 0, -1)
        found = [json.loads(message)["properties"]["delivery_info"]["routing_key"] for message in lists]
        assert sorted(found) == sorted(4 * [key.format(at) for key in KEYS if name in KEYS[key] for at in range(20)])


@pytest.mark.amqp
def test_routing_keys_are_a_jobs_own_on_rabbitmq(
    private_rabbit: PrivateRabbit, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = private_rabbit
    topics = Exchange("topics", "topic")
    queues = [Queue("shapes"), Queue("all", topics, "#")]
    app: Celery = make_app(server.url, task_queues=queues, task_default_queue="shapes")
    with FastBench(app) as bench:
        asked = questions(bench, monkeypatch)
        keys = [f"{'eu' if at % 2 else 'as'}.{at % 100:02d}.ä{at:03d}" for at in range(JOBS)]
        options = [{"exchange": "topics", "queue": "all", "routing_key": key} for key in keys]
        bench.load([job(at, bench.route(options=json.dumps(one))) for at, one in enumerate(options)])
        for _ in range(2):
            bench.pass_minutes()
            bench.drain()
        assert (len(asked), bench.slow_runs) == (1, 0)
        assert bench.ledger.sent == 2 * JOBS
    found: dict[str, list[str]] = {}
    with amqp.Connection(f"127.0.0.1:{server.port}") as connection:
        channel = connection.channel()
        while (message := channel.basic_get("all", no_ack=True)) is not None:
            found.setdefault(message.delivery_info["routing_key"], []).append(message.headers["argsrepr"])
    assert found == {key: [f"[{at}]"] * 2 for at, key in enumerate(keys)}
