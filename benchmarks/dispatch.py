"""Throughput of the fast lane: ``python benchmarks/dispatch.py [--full] [--brokers redis,classic,quorum]``.

Each round measures in turn: Celery's own path of a beat (``Scheduler.apply_async``), the fast lane, and the broker's
ceiling (the same bytes, pre-rendered, written without waiting for replies). A figure is the median of the rounds and a
ratio the median of the ratios within a round, so that other load on the machine affects all three alike. Private
servers are started and stopped. With many jobs resident (a million, with ``--full`` 25 million, each due every minute)
the runs of ten seconds are rendered once without and once with cached parts.
"""

from __future__ import annotations

import argparse
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import amqp
import numpy as np
import redis
from celery.beat import Scheduler
from kombu import Queue
from report import Report, at_least, cpu_s, shown
from services import PrivateRabbit, PrivateRedis, free_port
from services.server import tree
from support.lanes.bench import FastBench, numbered
from support.lanes.fast_lane import form_of, make_app, make_entry
from synthetic import BATCH, batch_of
from synthetic import numbered as numbered_texts

from celery_wheelbeat.beat.loading import prepare, settle
from celery_wheelbeat.dispatch.fast_lane.lane import BLOCK_RUNS
from celery_wheelbeat.dispatch.fast_lane.rendering import columns_of
from celery_wheelbeat.dispatch.messages.envelope import Envelope
from celery_wheelbeat.dispatch.messages.envelope_maker import Arguments
from celery_wheelbeat.dispatch.messages.part_cache import PartCache
from celery_wheelbeat.engine.payloads import Payloads
from celery_wheelbeat.jobs.definitions import DefinitionBatch, Misfire, flags_of
from celery_wheelbeat.schedules.kinds import ALWAYS_MS, NEVER_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from services import PrivateServer

    from celery_wheelbeat.dispatch.fast_lane.batches import Batch, Parcel

INTERVAL_MS = 60_000
CELERY_SENDS = 500
BLIND_WINDOW = 16_000
"""Unconfirmed messages of the ceiling's writer: as many as of the lane."""
ARGUMENTS = b'[[1], {"url": "https://customer-000000000.example.com/health/live?probe=0123456789"}]'
RENDERED_S = 10
RESIDENT_ROUNDS = 3
KEPT_BYTES = 4 << 30


class Rates(NamedTuple):
    """Messages per second of one round."""

    own: float
    fast: float
    ceiling: float


def definitions(count: int, route: int) -> DefinitionBatch:
    """Return ``count`` monitors with an interval of a minute and distinct arguments."""
    payloads = [b'[[%d], {"url": "https://example.org/health/%d"}]' % (number, number) for number in range(count)]
    names = [b"check %d" % number for number in range(count)]

    def all_of(value: int, kind: Any = np.int64) -> Any:
        return np.full(count, value, kind)

    return DefinitionBatch(
        ids=np.arange(count, dtype=np.int64),
        kind=all_of(0, np.uint8),
        interval_ms=all_of(INTERVAL_MS),
        anchor_ms=all_of(0),
        offset_ms=all_of(0),
        cron_index=all_of(-1, np.int32),
        flags=all_of(flags_of(enabled=True, one_off=False, misfire=Misfire.AUTO), np.uint16),
        route_index=all_of(route, np.uint32),
        start_ms=all_of(ALWAYS_MS),
        end_ms=all_of(NEVER_MS),
        incident_interval_ms=all_of(0),
        incident_until_ms=all_of(0),
        effective_from_ms=all_of(0),
        payload=b"".join(payloads),
        lengths=np.array(list(map(len, payloads)), np.uint32),
        names=b"".join(names),
        name_lengths=np.array(list(map(len, names)), np.uint16),
    )


class Absorbing:
    """Replaces the sender: accepts every batch and confirms nothing."""

    def __init__(self, sender: Any, *, keep: bool) -> None:
        self.kept: list[Batch] = []
        self.count = 0
        """Number of messages accepted."""
        self.tokens: list[int] = []
        self._sender = sender
        self._keep = keep

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sender, name)

    def capacity(self) -> int:
        """Return the whole window: there is always room."""
        return int(self._sender.window)

    def submit(self, batch: Batch) -> None:
        """Accept ``batch``."""
        self.tokens.append(batch.token)
        self.count += batch.size
        if self._keep:
            self.kept.append(batch)


def loaded(bench: FastBench, count: int) -> float:
    """Load monitors and run each once, so that envelopes and parts are cached; return runs per CPU second."""
    bench.engine.load(definitions(count, bench.route()), {})
    settle()
    began_s = time.process_time()
    bench.pass_minutes()
    bench.drain()
    return count / (time.process_time() - began_s)


def in_process(bench: FastBench, *, keep: bool = False, seconds: int = 60) -> tuple[float, list[Batch]]:
    """Return messages rendered per CPU second, starting from the backlog, and the batches if ``keep``."""
    fast = bench.fast
    real = fast.publisher
    due = sum(bench.pass_second() for _ in range(seconds))
    fast.publisher = absorbing = Absorbing(real, keep=keep)  # type: ignore[assignment]
    began_s = time.thread_time()
    while fast.backlog.waiting:
        now_s = time.monotonic()
        fast.refresh(now_s)
        fast.submit_due(now_s)
    took_s = time.thread_time() - began_s
    fast.publisher = real
    for token in absorbing.tokens:
        fast.backlog.confirm([token])
    if absorbing.count != due:
        raise SystemExit(f"{due:,} runs were due, {absorbing.count:,} messages were made of them")
    return due / took_s, absorbing.kept


def compiled(bench: FastBench, count: int = 40_000) -> float:
    """Return the number of monitors whose parts are rendered per CPU second, in blocks as large as the lane's."""
    (envelope,) = (answer for _, answer in bench.fast.forms.answers() if isinstance(answer, Envelope))
    made = definitions(count, 0)
    payloads = Payloads()
    refs = payloads.add(made.payload, made.lengths, made.names, made.name_lengths)
    bodies, together = PartCache(KEPT_BYTES), BLOCK_RUNS * bench.fast.publisher.window // 2
    began_s = time.thread_time()
    for start in range(0, count, together):
        part = refs[start : start + together]
        bodies.columns(part, 1, envelope.opening_width, lambda at, part=part: columns_of(envelope, payloads, part, at))
    return count / (time.thread_time() - began_s)


class Watched:
    """The fast lane with a real broker, and its cost: CPU of both sides, bytes of rendered messages."""

    def __init__(self, bench: FastBench, server: PrivateServer) -> None:
        self.most_bytes = 0
        self.client_us: list[float] = []
        self.server_us: list[float] = []
        self._bench = bench
        self._server = server
        sender = bench.fast.publisher
        submit = sender.submit

        def weigh(batch: Batch) -> None:
            submit(batch)
            on_the_way = (parcel.data for one in sender._unsettled.values() for parcel in one.parcels)
            self.most_bytes = max(self.most_bytes, sum(map(len, on_the_way)))

        sender.submit = weigh  # type: ignore[method-assign]

    def end_to_end(self) -> float:
        """Return confirmed messages per second, starting from the backlog."""
        runs = self._bench.pass_minutes()
        client_s, server_s = time.process_time(), self._server_cpu_s()
        began_s = time.perf_counter()
        self._bench.drain()
        took_s = time.perf_counter() - began_s
        self.client_us.append((time.process_time() - client_s) / runs * 1e6)
        self.server_us.append((self._server_cpu_s() - server_s) / runs * 1e6)
        return runs / took_s

    def _server_cpu_s(self) -> float:
        return sum(map(cpu_s, tree(self._server.pid)))


class CelerysOwn:
    """``Scheduler.apply_async``, called as by a beat."""

    def __init__(self, app: Any) -> None:
        self._scheduler = Scheduler(app, lazy=True)
        arguments = Arguments([1], {"url": "https://example.org/health/1"})
        self._entry = make_entry(app)(form_of("lanes.check", {}), "check", arguments)
        self._producer = app.amqp.Producer(app.connection_for_write(), auto_declare=False)
        self.send(10)

    def send(self, count: int = CELERY_SENDS) -> float:
        """Return messages per second."""
        began_s = time.perf_counter()
        for _ in range(count):
            self._scheduler.apply_async(self._entry, producer=self._producer, advance=False)
        return count / (time.perf_counter() - began_s)

    def close(self) -> None:
        """Close the connection."""
        self._producer.connection.release()


def parcels_of(batches: list[Batch]) -> list[Parcel]:
    """Return all parcels."""
    return [parcel for batch in batches for parcel in batch.parcels]


def redis_ceiling(server: PrivateRedis, batches: list[Batch]) -> float:
    """Return messages per second of variadic LPUSHes of the same bytes, without waiting for replies."""
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        parcels = parcels_of(batches)
        head = [b"*%d\r\n$5\r\nLPUSH\r\n$6\r\ncelery\r\n" % (parcel.size + 2) for parcel in parcels]
        began_s = time.perf_counter()
        for first, parcel in zip(head, parcels, strict=True):
            client.sendall(first)
            client.sendall(parcel.data)
        replies = 0
        while replies < len(parcels):
            replies += client.recv(65536).count(b"\r\n")
        return sum(parcel.size for parcel in parcels) / (time.perf_counter() - began_s)


def amqp_ceiling(server: PrivateRabbit, batches: list[Batch]) -> float:
    """Return messages per second of the same frames, written without waiting, confirmed by the broker."""
    connection = amqp.Connection(f"127.0.0.1:{server.port}")
    connection.connect()
    channel = connection.channel()
    channel.confirm_select()
    settled = 0

    def on_ack(tag: int, multiple: bool) -> None:
        nonlocal settled
        settled = max(settled, tag) if multiple else settled + 1

    channel.events["basic_ack"].add(on_ack)
    parcels = parcels_of(batches)
    total = sum(parcel.size for parcel in parcels)
    began_s = time.perf_counter()
    written = 0
    for parcel in parcels:
        connection.transport.write(memoryview(parcel.data))
        written += parcel.size
        while settled < written - BLIND_WINDOW:
            connection.drain_events(timeout=10)
    while settled < total:
        connection.drain_events(timeout=10)
    took_s = time.perf_counter() - began_s
    connection.close()
    return total / took_s


def measure(
    report: Report,
    name: str,
    bench: FastBench,
    own: CelerysOwn,
    server: Any,
    *,
    count: int,
    rounds: int,
    ceiling: Callable[[Any, list[Batch]], float],
    empty: Callable[[], Any],
    of_ceiling: float,
    own_times: float | None = None,
    limit: str,
) -> None:
    """Measure one broker and add its figures."""
    first = loaded(bench, count)
    server.pause()  # the broker's full queue slows down rendering
    rendered = [in_process(bench)[0] for _ in range(rounds)]
    _, batches = in_process(bench, keep=True)
    pieces = compiled(bench)
    server.resume()
    watched = Watched(bench, server)
    found = []
    for _ in range(rounds):
        own_s = own.send()
        empty()
        fast_s = watched.end_to_end()
        empty()
        found.append(Rates(own_s, fast_s, ceiling(server, batches)))
        empty()
    rates = Rates(*map(median, zip(*found, strict=True)))
    times = median(one.fast / one.own for one in found)
    share = median(one.fast / one.ceiling for one in found)
    report.add(
        f"{name}: due job to finished message",
        median(rendered),
        "/s of CPU",
        target=at_least(500_000),
        note=f"best round {shown(max(rendered))}",
        limit="one core: SHA-1 of the ids, copies of pieces that wait for memory, look-ups by shard",
    )
    report.add(
        f"{name}: pieces of a monitor",
        pieces,
        "/s of CPU",
        target=at_least(50_000),
        note="JSON, reprs and frames, once per definition; read, made and kept",
    )
    report.add(f"{name}: first message of a monitor", first, "/s of CPU", note="pieces, rendering, sending, outcome")
    report.add(f"{name}: Celery's own way", rates.own, "/s")
    report.add(
        f"{name}: fast lane, confirmed",
        rates.fast,
        "/s",
        floor=rates.ceiling,
        note=f"{times:.0f} × Celery's own way",
        limit=limit,
    )
    report.add(f"{name}: share of the broker's ceiling, by rounds", share * 100, "%", target=at_least(of_ceiling))
    if own_times:
        report.add(f"{name}: against Celery's own way, by rounds", times, "×", target=at_least(own_times))
    report.add(f"{name}: fast lane, CPU of the beat", median(watched.client_us), "µs each")
    report.add(f"{name}: fast lane, CPU of the broker", median(watched.server_us), "µs each")
    report.add(f"{name}: finished messages in the beat, at most", watched.most_bytes / 1e6, "MB", note="the window")


def on_redis(report: Report, count: int, rounds: int) -> None:
    """Measure on a private Redis."""
    with PrivateRedis() as server, redis.Redis.from_url(server.url) as client:
        own = CelerysOwn(make_app(server.url))
        with FastBench(make_app(server.url)) as bench:
            measure(
                report,
                "Redis",
                bench,
                own,
                server,
                count=count,
                rounds=rounds,
                ceiling=redis_ceiling,
                empty=client.flushall,
                of_ceiling=60,
                own_times=100,
                limit="rendering and writing in one Python process; Redis would take more",
            )
        own.close()


def on_rabbit(report: Report, count: int, rounds: int, kind: str) -> None:
    """Measure on a private RabbitMQ with a classic or a quorum queue."""
    with PrivateRabbit(free_port()) as server:
        conf = {"task_queues": [Queue(kind, queue_arguments={"x-queue-type": kind})], "task_default_queue": kind}
        own = CelerysOwn(make_app(server.url, broker_transport_options={"confirm_publish": True}, **conf))
        with FastBench(make_app(server.url, **conf)) as bench:
            measure(
                report,
                f"RabbitMQ, {kind} queue",
                bench,
                own,
                server,
                count=count,
                rounds=rounds,
                ceiling=amqp_ceiling,
                empty=lambda: server.ctl("purge_queue", kind),
                of_ceiling=90,
                limit="the broker",
            )
        own.close()


def resident(report: Report, jobs: int) -> None:
    """Measure rendering with many jobs resident, each due every minute."""
    sizes = {"max_jobs": jobs, "backlog_max": jobs, "envelope_bytes": KEPT_BYTES}
    with PrivateRedis() as server, FastBench(make_app(server.url), **sizes) as bench:
        route = np.uint32(bench.route())
        engine = bench.engine
        bench.load(numbered(10, int(route), first=jobs))
        bench.pass_minutes()
        bench.drain()  # now the envelope is cached
        engine.expect(jobs)
        for first in range(0, jobs, BATCH):
            ids = np.arange(first, min(jobs, first + BATCH), dtype=np.int64)
            made = {"payload": numbered_texts(ARGUMENTS, ids), "lengths": np.full(len(ids), len(ARGUMENTS), np.uint32)}
            batch = replace(batch_of(ids, np.full(len(ids), INTERVAL_MS)), route_index=np.full(len(ids), route), **made)
            engine.load(batch, {})
        settle()
        rates = []
        for _ in range(1 + RESIDENT_ROUNDS):
            rates.append(in_process(bench, seconds=RENDERED_S)[0])
            for _ in range(60 - RENDERED_S):
                bench.now_ms += 1000
                engine.advance(bench.now_ms)  # due, and not offered to any lane
        what, kept = f"Redis, {jobs:,} jobs resident", bench.fast._messages.bodies.resident_bytes
        report.add(
            f"{what}: finished messages, pieces kept",
            median(rates[1:]),
            "/s of CPU",
            target=at_least(500_000),
            note=f"due, looked up, named, rendered; {kept / 1e6:,.0f} MB kept; best round {shown(max(rates))}",
            limit="look-ups and copies that wait for memory, SHA-1 of the ids",
        )
        report.add(
            f"{what}: finished messages, nothing kept",
            rates[0],
            "/s of CPU",
            note="what wheelbeat_envelope_bytes has no room for: about 300 B each",
            limit="JSON decoded and encoded, reprs",
        )


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="with 25 million jobs resident")
    parser.add_argument("--runs", type=int, default=60_000, help="monitors that are due in one round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--brokers", default="resident,redis,classic,quorum")
    given = parser.parse_args()
    prepare()  # as a beat does
    report = Report("dispatch", full=given.full, runs=given.runs, rounds=given.rounds)
    for broker in given.brokers.split(","):
        if broker == "resident":
            resident(report, 25_000_000 if given.full else 1_000_000)
        elif broker == "redis":
            on_redis(report, given.runs, given.rounds)
        else:
            on_rabbit(report, min(given.runs, 20_000), given.rounds, broker)
    report.write()


if __name__ == "__main__":
    main()
