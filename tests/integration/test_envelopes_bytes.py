"""Messages of the fast lane are, byte for byte, what Celery sends: for every option, and for random arguments."""

from __future__ import annotations

import json
import struct
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from celery.beat import SchedulingError
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kombu import Exchange, Queue
from services import TcpProxy
from support.lanes.fast_lane import FIRE_MS, form_of, make_app, make_entry, make_wire

from celery_wheelbeat.beat.scheduler import WheelScheduler
from celery_wheelbeat.dispatch import Run
from celery_wheelbeat.dispatch.fast_lane.amqp_wire import AmqpWire
from celery_wheelbeat.dispatch.fast_lane.batches import Batch, Parcel
from celery_wheelbeat.dispatch.messages.attempt import Attempt
from celery_wheelbeat.dispatch.messages.envelope import Envelope, SampleMessage
from celery_wheelbeat.dispatch.messages.envelope_maker import Arguments, rendered
from celery_wheelbeat.dispatch.messages.expiry import expiries, left_ms, written_expiry
from celery_wheelbeat.dispatch.messages.patterns import TEXTS, Own, own_of, pattern_of
from celery_wheelbeat.dispatch.messages.plain_queues import plain_queues
from celery_wheelbeat.dispatch.messages.recording import Recording
from celery_wheelbeat.dispatch.messages.template import Unsendable
from celery_wheelbeat.jobs.definitions import Route
from celery_wheelbeat.jobs.names import header_problem
from celery_wheelbeat.jobs.send_options import MAX_EXPIRES_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from celery import Celery
    from celery.beat import ScheduleEntry

    from celery_wheelbeat.dispatch.messages.patterns import Form

KINDS = ("redis", "amqp")
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "priority": {"priority": 7},
    "queue": {"queue": "other"},
    "relative expiry": {"expires": 30},
    "fractional expiry": {"expires": 0.25},
    "headers": {"headers": {"trace": 'ä%s%%b \\ "', "deep": {"n": [1, None]}}},
    "time limits": {"time_limit": 30, "soft_time_limit": 20.5},
    "results ignored": {"ignore_result": True},
    "shadow": {"shadow": "another name"},
    "fixed id": {"task_id": "always-this"},
    "transient": {"delivery_mode": "transient"},
    "gzip": {"compression": "gzip"},
    "bzip2": {"compression": "bzip2"},
    "pickle": {"serializer": "pickle"},
    "yaml": {"serializer": "yaml"},
    "msgpack": {"serializer": "msgpack"},
    "message properties": {"app_id": "beat", "type": "check"},
    "link": {"link": {"task": "lanes.check", "args": [1], "kwargs": {}, "options": {}, "subtask_type": None}},
    "link_error": {
        "link_error": [{"task": "a.b", "args": [], "kwargs": {"n": 1}, "options": {}, "subtask_type": None}]
    },
    "stamps": {"stamped_headers": ["customer", "plan"], "customer": "ä%s", "plan": ["a", 1]},
    "direct exchange": {"exchange": "direct-ex", "routing_key": "direct", "queue": "direct-q"},
    "topic exchange": {"queue": "topic-q", "routing_key": "a.b"},
    "reply_to": {"reply_to": "somebody"},
    "root": {"root_id": "a-root", "parent_id": "a-parent"},
}


QUEUES = [
    Queue("celery"),
    Queue("direct-q", Exchange("direct-ex"), "direct"),
    Queue("topic-q", Exchange("topic-ex", "topic"), "a.#"),
]
EXCHANGES = [Exchange("e", "topic"), *(queue.exchange for queue in QUEUES if queue.exchange.name)]


@pytest.fixture(scope="module", params=KINDS)
def wire(request: pytest.FixtureRequest, redis_url: str, amqp_url: str) -> Iterator[Any]:
    if request.param == "amqp":
        with make_app(amqp_url).connection_for_write() as connection:
            for exchange in EXCHANGES:  # a message to an exchange that does not exist has no envelope
                exchange(connection.default_channel).declare()
    wire = connected(request.param, redis_url if request.param == "redis" else amqp_url)
    yield wire
    wire.close(broken=False)


def connected(kind: str, url: str, app: Celery | None = None) -> Any:
    """Return a wire with queues for all variants."""
    app = app or make_app(url, task_queues=QUEUES)
    wire = make_wire(
        app,
        kind=kind,
        options={"mandatory": True} if kind == "amqp" else {},
    )
    wire.connect()
    return wire


def recorded(wire: Any, form: Form, arguments: Arguments) -> tuple[Recording, SampleMessage]:
    recording, sample = wire._maker._record(form, arguments)
    assert isinstance(recording, Recording)
    return recording, sample


def made(wire: Any, form: Form) -> Envelope:
    envelope = wire.make(form, [Arguments([1], {}), Arguments(["a"], {"url": "b"})])
    assert isinstance(envelope, Envelope), envelope
    return envelope


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("task", ["lanes.check", "not.registered"])
def test_every_option_gives_celerys_own_bytes(wire: Any, variant: str, task: str) -> None:
    form = form_of(task, VARIANTS[variant])
    envelope = made(wire, form)
    for arguments in (Arguments([1], {}), Arguments([[1.5, "ü'"]], {"url": "https://e/%20?q=%s"})):
        recording, sample = recorded(wire, form, arguments)
        assert rendered(envelope, recording, sample) == recording.wire
        assert envelope.key == recording.key


def test_further_headers_are_part_of_the_message(wire: Any) -> None:
    form = form_of("lanes.check", {"headers": {"mine": 1}}, ("wheelbeat_claim_ttl", 8192))
    recording, sample = recorded(wire, form, Arguments([1], {}))
    assert list(recording.headers)[-6:] == [
        "mine",
        "wheelbeat_claim_ttl",
        "celery_beat_task",
        "periodic_task_name",
        "wheelbeat_fire_ms",
        "wheelbeat_nonce",
    ]
    assert rendered(made(wire, form), recording, sample) == recording.wire


def test_the_key_of_the_job_is_next_to_its_name(wire: Any) -> None:
    overlap = (("wheelbeat_overlap", "skip"), ("wheelbeat_job", 'name"space/'))
    form = form_of("lanes.check", {"headers": {"mine": 1}}, ("wheelbeat_claim_ttl", 8192), *overlap)
    envelope = made(wire, form)
    for arguments in (Arguments([1], {}), Arguments([[1.5, "ü'"]], {"url": "x" * 300})):
        recording, sample = recorded(wire, form, arguments)
        assert recording.headers["wheelbeat_job"] == f'name"space/{sample.own.key}'
        assert rendered(envelope, recording, sample) == recording.wire
    assert envelope.names_key


def test_a_header_of_the_users_that_is_called_like_ours_is_left_alone(wire: Any) -> None:
    form = form_of("lanes.check", {"headers": {"wheelbeat_job": "mine"}})
    recording, sample = recorded(wire, form, Arguments([1], {}))
    assert recording.headers["wheelbeat_job"] == "mine"
    assert rendered(made(wire, form), recording, sample) == recording.wire


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=200),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4),
    max_leaves=12,
)


OVERLAP = (("wheelbeat_overlap", "skip"), ("wheelbeat_job", 'name"space/'))
NAMES = st.text(min_size=1, max_size=30).filter(lambda name: header_problem(name) is None)
OWN = st.dictionaries(NAMES, JSON, max_size=4)


def is_read(header: str) -> bool:
    """Return whether Celery or a tracing tool reads a header of this name."""
    name = header.lower()
    return name in ("baggage", "compression", "group_index", "headers", "traceparent") or name.startswith("sentry")


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(headers=OWN, others=OWN, overlap=st.booleans(), key=st.text("ab.#*ä", min_size=1))
@example({"customer": 1}, {"a": "x" * 3000, "b": -(2**63), "c": None, "customer": {"a": [1.5]}}, True, "x")
@example({"at": {"__type__": "date", "__value__": "2030-01-02"}}, {"other": 1}, False, "x" * 70)
def test_what_is_a_jobs_own_is_written_as_celery_writes_it(
    wire: Any, headers: dict[str, Any], others: list[Any], overlap: bool, key: str
) -> None:
    """The envelope is made with one job's values, and then used for others'."""
    is_amqp = isinstance(wire, AmqpWire)
    route = Route("lanes.anything", json.dumps({"exchange": "e", "routing_key": key, "headers": headers}))
    if not is_amqp:
        route = Route("lanes.anything", json.dumps({"queue": "own", "headers": headers}))
    form = pattern_of(route)._replace(headers=OVERLAP if overlap else ())
    assert ("headers" in form.options) == (headers != {} and not any(map(is_read, headers)))
    assert ("routing_key" in form.options) == is_amqp
    envelope = wire.make(form, [Arguments([1], {}, own_of(route, form))])
    assert isinstance(envelope, Envelope), envelope
    for values in (headers, others):
        own = Own({"headers": values} if "headers" in form.options else {})
        if is_amqp:
            own = Own({**own.options, "routing_key": key[::-1]})
        try:
            recording, sample = recorded(wire, form, Arguments(["ü"], {}, own))
        except SchedulingError:  # a number of 65 bits, …
            with suppress(Exception):
                envelope.pieces(envelope.body.of(["ü"], {}), "name", own)
                pytest.fail(f"{own} was written, though Celery refuses it")
            continue
        assert rendered(envelope, recording, sample) == recording.wire
        assert recording.routing_key == (key[::-1] if is_amqp else "own")


SIGNATURES = st.builds(
    lambda task, args, options: {"task": task, "args": args, "kwargs": {"ä": args}, "options": options},
    st.text(),
    st.lists(JSON, max_size=2),
    st.dictionaries(st.text(max_size=9), JSON, max_size=2),
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=70)
SECONDS = st.integers(0, MAX_EXPIRES_S) | st.floats(0, MAX_EXPIRES_S)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(TEXTS, TEXT),
        "link": SIGNATURES | st.lists(SIGNATURES, min_size=1, max_size=2),
        "link_error": SIGNATURES | st.lists(SIGNATURES, min_size=1, max_size=2),
        "headers": st.dictionaries(NAMES.filter(lambda name: not is_read(name)), TEXT, min_size=1, max_size=2),
        "serializer": st.sampled_from(["pickle", "yaml", "json"]),
        "expires": st.integers(1, MAX_EXPIRES_S)
        | st.floats(1e-6, MAX_EXPIRES_S)
        | st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat),
        "priority": st.integers(0, 255),
        "time_limit": SECONDS,
        "soft_time_limit": SECONDS,
        "compression": st.just("gzip"),
    },
)


def are_alike(name: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return whether both have the option; seconds are not like an instant."""
    return name in second and isinstance(first[name], str) == isinstance(second[name], str)


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(options=OPTIONS, other=OPTIONS, overlap=st.booleans())
@example(dict.fromkeys(TEXTS, "x"), dict.fromkeys(TEXTS, "ä" * 126), True)
@example({"shadow": "a" * 3_000}, {"shadow": '"\\'}, False)
@example({"shadow": "id", "task_id": "id", "root_id": "id"}, {"reply_to": "id"}, False)
@example({"link": {"task": "a"}, "link_error": [{"task": "b"}]}, {"link": [{"task": "c"}] * 2, "link_error": {}}, False)
def test_options_of_a_jobs_own_are_written_as_celery_writes_them(
    wire: Any, options: dict[str, Any], other: dict[str, Any], overlap: bool
) -> None:
    """The envelope is made with one job's values, and then used for others' of the same names."""
    route = Route("lanes.anything", json.dumps(options))
    form = pattern_of(route)._replace(headers=OVERLAP if overlap else ())
    assert set(form.options) == options.keys() - {"serializer", "compression"}
    envelope = made(wire, form)
    for values in (
        options,
        {**options, **{name: other[name] for name in form.options if are_alike(name, options, other)}},
    ):
        own = own_of(Route("lanes.anything", json.dumps(values)), form)
        recording, sample = recorded(wire, form, Arguments(["ü", {"n": 1}], {}, own))
        if own.links:
            (one,) = envelope.body.of_payloads([b'[["\\u00fc", {"n": 1}], {}]'], [own])
            assert one == envelope.body.of(["ü", {"n": 1}], {}, own)
            (flat,) = envelope.body.of_payloads([b'[["u"], {"n": 1}]'], [own])
            assert flat == envelope.body.of(["u"], {"n": 1}, own)
        assert rendered(envelope, recording, sample) == recording.wire


NOW_S = 1_800_000_000
INSTANTS = [NOW_S - 1, NOW_S, *(NOW_S + left for left in (0.25, 0.001, 1.001, 2.001, 9.9995, 10, 300.25, 10**7, 10**9))]
ENDS = {
    "expires": [1e-6, 0.0015, 0.25, 1, 1.001, 30, 86_400.5, MAX_EXPIRES_S - 0.1, MAX_EXPIRES_S],
    "expires at": [datetime.fromtimestamp(at, UTC).isoformat() for at in INSTANTS],
    "priority": [0, 1, 3, 9, 10, 127, 128, 255],
    "time_limit": [0, 1, 0.5, 127, 128, 2**31 - 1, 2**31, 2**40, MAX_EXPIRES_S],
    "soft_time_limit": [0, 1e-9, 255, 65_536, MAX_EXPIRES_S - 0.5],
    "queue": ["q", "ü" * 127, 'q"', "celery"],
    "headers": [{"a": 1}, {"é": None, "n" * 255: [1, {"b": 2.5}]}, {f"h{n}": n for n in range(200)}],
    "type": ["x", "é" * 127, 'quote"'],
    "app_id": ["x", "x" * 255],
}


@pytest.mark.parametrize("option", ENDS)
@pytest.mark.parametrize(
    "others", [{}, {"shadow": "s", "priority": 5, "headers": {"b": 1}, "expires": 5, "time_limit": 1}]
)
def test_values_at_both_ends_are_written_as_celery_writes_them(
    wire: Any, option: str, others: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One envelope serves all of them, and neither clock nor rounding makes a difference."""
    name = option.removesuffix(" at")
    routes = [Route("lanes.check", json.dumps({**others, name: value}, sort_keys=True)) for value in ENDS[option]]
    forms = [pattern_of(route, plain_queues(wire._maker._app)) for route in routes]
    (form,) = {form._replace(expires_s=forms[0].expires_s) for form in forms}
    envelope = wire.make(form, [Arguments([1], {}, own_of(routes[0], form))])
    assert isinstance(envelope, Envelope), envelope
    now = datetime.fromtimestamp(NOW_S, ZoneInfo("UTC")).replace(microsecond=123_457)
    monkeypatch.setattr(wire._maker._app, "now", lambda: now)
    for route in routes:
        own = own_of(route, form)
        recording, sample = recorded(wire, form, Arguments([1], {}, own))
        assert rendered(envelope, recording, sample) == recording.wire
        assert envelope.key_of(own) == recording.key
        if own.expires_s is not None:
            lifetime = np.frombuffer(written_expiry(own), np.uint8).reshape(1, -1)
            assert expiries(now, lifetime) == recording.headers["expires"].encode()
        if own.expires_at is not None:
            instant = np.frombuffer(written_expiry(own), np.uint8).reshape(1, -1)
            assert str(left_ms(now, instant)[0]) == recording.properties["expiration"]


def test_many_expiries_are_computed_as_one_by_one() -> None:
    seconds = [1e-6, 0.25, 86_400.5, *range(1, MAX_EXPIRES_S, 5_000_077), MAX_EXPIRES_S]
    lifetimes = np.frombuffer(b"".join(written_expiry(Own({"expires": one})) for one in seconds), np.uint8).reshape(
        -1, 8
    )
    for zone in ("UTC", "Europe/Berlin", "Asia/Kolkata"):
        now = datetime(2027, 3, 28, 0, 59, 59, 7, tzinfo=ZoneInfo("UTC")).astimezone(ZoneInfo(zone))
        found = expiries(now, lifetimes)
        assert not isinstance(found, bytes)
        for row, one in zip(found, seconds, strict=True):
            expected = (now.astimezone(UTC) + timedelta(seconds=one)).astimezone(now.tzinfo)
            assert bytes(row).decode() == expected.isoformat(timespec="microseconds")


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_option_gives_celerys_own_bytes_as_a_jobs_own(wire: Any, variant: str) -> None:
    route = Route("lanes.check", json.dumps(VARIANTS[variant]))
    form = pattern_of(route, plain_queues(wire._maker._app))
    own = own_of(route, form)
    assert ("queue" in own.options) == (variant == "queue")
    answer = wire.make(form, [Arguments([1], {}, own), Arguments(["a"], {"url": "b"}, own)])
    assert isinstance(answer, Envelope), answer
    for arguments in (Arguments([1], {}, own), Arguments([[1.5, "ü'"]], {"url": "https://e/%20?q=%s"}, own)):
        recording, sample = recorded(wire, form, arguments)
        assert rendered(answer, recording, sample) == recording.wire
        assert answer.key_of(own) == recording.key
        assert wire.compare(answer, form, arguments) == ""


def test_a_text_that_amqp_cannot_hold_concerns_its_job_alone(wire: Any) -> None:
    form = pattern_of(Route("lanes.check", '{"reply_to": "a", "shadow": "s"}'))
    envelope, long = made(wire, form), "x" * 256
    own = Own(options={"reply_to": long, "shadow": long})
    if isinstance(wire, AmqpWire):
        with pytest.raises(Unsendable, match="256 bytes; in AMQP it has 255 bytes at most"):
            envelope.pieces(envelope.body.of([1], {}), "name", own)
        with pytest.raises(SchedulingError, match="255 bytes at most"):
            recorded(wire, form, Arguments([1], {}, own))
    own = Own(options={"reply_to": "a", "shadow": long})
    recording, sample = recorded(wire, form, Arguments([1], {}, own))
    assert rendered(envelope, recording, sample) == recording.wire


def test_a_routing_key_without_effect_is_left_out(wire: Any) -> None:
    """Celery sends to the queue by name where no exchange is named, whatever the routing key is."""
    route = Route("lanes.check", json.dumps({"queue": "direct-q", "routing_key": "no.matter"}))
    form = pattern_of(route)
    envelope = wire.make(form, [Arguments([1], {}, own_of(route, form))])
    assert isinstance(envelope, Envelope), envelope
    recording, sample = recorded(wire, form, Arguments([1], {}, Own({"routing_key": "another.1"})))
    assert recording.routing_key == "direct-q"
    assert rendered(envelope, recording, sample) == recording.wire


@pytest.mark.parametrize("shorts", [0, 1, 2])
def test_an_instant_without_microseconds_is_no_difference(
    wire: Any, monkeypatch: pytest.MonkeyPatch, shorts: int
) -> None:
    """Python writes such an expiry with seven characters less, which happens once in a million messages."""
    form, arguments = form_of("lanes.check", {"expires": 30}), Arguments([1], {})
    envelope = made(wire, form)
    app, record = wire._maker._app, wire._maker._record_once
    now, recordings = app.now, iter(range(1, 100))

    def record_at_an_instant(*given: Any) -> Any:
        microsecond = 0 if next(recordings) <= shorts else 5
        monkeypatch.setattr(app, "now", lambda: now().replace(microsecond=microsecond))
        return record(*given)

    monkeypatch.setattr(wire._maker, "_record_once", record_at_an_instant)
    assert wire.compare(envelope, form, arguments) == ""
    assert next(recordings) == shorts + 2
    monkeypatch.setattr(app.amqp, "argsrepr_maxsize", 1)
    assert wire.compare(envelope, form, arguments) == "Celery renders other bytes now"


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(args=st.lists(JSON, max_size=4), kwargs=st.dictionaries(st.text(max_size=10), JSON, max_size=4))
@example(args=["it's", 'a "q"', "%b%%", "\\", "\n", "\x00", "\ud83d\ude00", "é"], kwargs={})
@example(args=["x" * 120], kwargs={"k" * 121: 1})
@example(args=["x" * 3000], kwargs={"a": "y" * 3000})
@example(args=[], kwargs={"a": {"b": {"c": {"d": {"e": 1}}}}})
@example(args=[10**30, -0.0, 1e300, True], kwargs={"": ""})
def test_random_arguments_give_celerys_own_bytes(wire: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    form = form_of("lanes.anything", {})
    envelope = wire.__dict__.setdefault("envelope_of_test", None) or made(wire, form)
    wire.envelope_of_test = envelope
    recording, sample = recorded(wire, form, Arguments(args, kwargs))
    assert rendered(envelope, recording, sample) == recording.wire


@pytest.mark.parametrize("length", [100, 130_000, 131_060, 131_064, 131_072, 400_000])
def test_bodies_of_several_frames(wire: Any, length: int) -> None:
    form = form_of("lanes.anything", {})
    recording, sample = recorded(wire, form, Arguments(["x" * length], {}))
    assert rendered(made(wire, form), recording, sample) == recording.wire


def test_utf8_bodies_on_redis(redis_url: str) -> None:
    app = make_app(redis_url, broker_transport_options={"body_encoding": "utf-8", "global_keyprefix": "pre:"})
    wire = make_wire(app, kind="redis")
    wire.connect()
    form = form_of("lanes.check", {})
    recording, sample = recorded(wire, form, Arguments(["ü"], {}))
    envelope = made(wire, form)
    assert envelope.key == b"pre:celery"
    assert rendered(envelope, recording, sample) == recording.wire
    wire.close(broken=False)


def test_what_is_pushed_is_what_was_recorded(redis_url: str) -> None:
    """The recording itself is no fiction: a message that Celery really pushed differs in nonce and tag only."""
    import redis

    app = make_app(redis_url)
    wire = make_wire(app, kind="redis")
    wire.connect()
    form = form_of("lanes.check", {"queue": "really"})
    recording, sample = recorded(wire, form, Arguments([3], {"url": "u"}))
    entry: ScheduleEntry = make_entry(app)(form, sample.name, Arguments([3], {"url": "u"}))
    run = Run(0, "", sample.name, sample.fire_ms, sample.run_id, entry, 0)
    with app.connection_for_write() as connection, Attempt(run).open():
        producer = app.amqp.Producer(connection, auto_declare=False)
        WheelScheduler(app, lazy=True).apply_async(entry, producer=producer, advance=False)
    with redis.Redis.from_url(redis_url) as client:
        (pushed,) = client.lrange("really", 0, -1)
    ours, theirs = json.loads(recording.wire), json.loads(pushed)
    for message in (ours, theirs):
        del message["properties"]["delivery_tag"], message["headers"]["wheelbeat_nonce"]
    assert ours == theirs
    assert list(ours["headers"]) == list(theirs["headers"])
    assert list(ours["properties"]) == list(theirs["properties"])
    wire.close(broken=False)


def published(written: bytes) -> list[tuple[int, bytes]]:
    """The frames of each ``basic.publish`` among what a client wrote: type and payload."""
    frames: list[tuple[int, bytes]] = []
    greeting = b"AMQP\x00\x00\x09\x01"
    at = written.index(greeting)
    while at < len(written):
        if written.startswith(greeting, at):  # of another connection: the trial of a named exchange has its own
            at += len(greeting)
        kind, _, size = struct.unpack_from(">BHI", written, at)
        payload = bytes(written[at + 7 : at + 7 + size])
        assert written[at + 7 + size] == 0xCE
        at += size + 8
        if kind != METHOD or payload[:4] == PUBLISH:
            frames.append((kind, payload))
    return [frame for frame in frames if frame[0] != HEARTBEAT]


METHOD, HEARTBEAT = 1, 8
PUBLISH = struct.pack(">HH", 60, 40)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if "expiry" not in name])
def test_what_is_written_to_rabbitmq_is_what_celery_writes(amqp_url: str, variant: str) -> None:
    """Looked at between client and server: Celery's own publish, then ours of the same run."""
    address = urlsplit(amqp_url)
    form, arguments = form_of("lanes.check", VARIANTS[variant]), Arguments([3], {"url": "x" * 140_000})
    with TcpProxy(address.port or 5672) as proxy:
        written = [bytearray(), bytearray()]
        url = address._replace(netloc=f"{address.username}:{address.password}@127.0.0.1:{proxy.port}").geturl()
        proxy.tap = written[0].extend
        app, queue = make_app(url, task_queues=QUEUES), VARIANTS[variant].get("queue", "celery")
        run_id = str(uuid.uuid4())
        sample = SampleMessage(run_id, FIRE_MS, "a name", *arguments)
        entry = make_entry(app)(form, sample.name, arguments)
        run = Run(0, "", sample.name, FIRE_MS, run_id, entry, 0)
        with app.connection_for_write(transport_options={"confirm_publish": True}) as connection:
            bound = app.amqp.queues[queue](connection.default_channel)
            bound.declare()
            bound.purge()
            with Attempt(run, {"mandatory": True}).open():
                producer = app.amqp.Producer(connection, auto_declare=False)
                WheelScheduler(app, lazy=True).apply_async(entry, producer=producer, advance=False)
            message = connection.default_channel.basic_get(queue, no_ack=True)
        proxy.tap = written[1].extend
        wire = connected("amqp", url, app)
        envelope = made(wire, form)
        recording, _ = recorded(wire, form, arguments)
        data = rendered(envelope, recording._replace(headers=message.headers), sample)
        nonce = message.headers["wheelbeat_nonce"].encode()
        batch = Batch(1, [Parcel(envelope.key, 1, data)], nonce, 1)
        wire.send(batch)
        while not (outcomes := wire.receive([batch], 0.1)):
            continue
        assert outcomes[0].failures == ()
        wire.close(broken=False)
    theirs, ours = map(published, map(bytes, written))
    assert [kind for kind, _ in theirs] == [1, 2, 3] if "zip" in variant else [1, 2, 3, 3]
    assert ours[-len(theirs) :] == theirs  # before it, the trial of a named exchange
