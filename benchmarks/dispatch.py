"""What the fast lane sends per second: ``python benchmarks/dispatch.py [--runs N] [--brokers redis,classic,quorum]``.

Every row is measured in the same process on the same machine, best of some rounds, beside what it is compared with:
Celery's own way of a beat (``Scheduler.apply_async``), and the broker's ceiling (the same bytes, rendered beforehand,
written without looking). Private servers are started and ended. Ratios matter; the absolute figures are this machine's.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import amqp
import numpy as np
import redis
from celery.beat import Scheduler
from fast_bench import FastBench
from kombu import Queue
from lanes import form_of, make_app, make_entry
from services import PrivateRabbit, PrivateRedis, free_port

from celery_wheelbeat.jobs import ALWAYS_MS, NEVER_MS, DefinitionBatch, Misfire, flags_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_wheelbeat.publishers.batches import Batch, Parcel

INTERVAL_MS = 60_000
CELERY_SENDS = 1_000


class Row(NamedTuple):
    """One figure, in messages per second."""

    what: str
    per_s: float
    note: str = ""


def definitions(count: int, route: int) -> DefinitionBatch:
    """Return ``count`` monitors with an interval of a minute and arguments of their own."""
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
    """Stands in for the sender: takes every batch, keeps the last ones, confirms nothing."""

    def __init__(self, sender: Any) -> None:
        self.kept: list[Batch] = []
        self._sender = sender

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sender, name)

    def capacity(self) -> int:
        """Always room."""
        return 1

    def submit(self, batch: Batch) -> None:
        """Keep ``batch``."""
        self.kept.append(batch)


def loaded(bench: FastBench, count: int) -> FastBench:
    """Load monitors and let each run once, so that envelopes and pieces are there."""
    bench.parts.engine.load(definitions(count, bench.route()), {}, bench.parts.routes)
    began_s = time.process_time()
    bench.pass_minutes()
    bench.drain()
    print(
        f"    {count:,} monitors rendered for the first time: {count / (time.process_time() - began_s):,.0f}/s of CPU"
    )
    return bench


def in_process(bench: FastBench, rounds: int) -> tuple[float, list[Batch]]:
    """Return finished messages per CPU second, from the backlog's pairs on, and batches of the last round."""
    fast = bench.lanes.fast
    real = fast.sender
    best, kept = 0.0, []
    for _ in range(rounds):
        runs = bench.pass_minutes()
        absorbing = Absorbing(real)
        fast.sender = absorbing  # type: ignore[assignment]
        began_s = time.thread_time()
        while fast.backlog.waiting:
            fast.hand_over(time.monotonic())
        best = max(best, runs / (time.thread_time() - began_s))
        fast.sender = real
        for batch in absorbing.kept:
            del fast._sent[batch.token]
            fast.backlog.confirm_block(batch.token)
        kept = absorbing.kept
    return best, kept


def end_to_end(bench: FastBench, rounds: int) -> float:
    """Return confirmed messages per second, from the backlog's pairs on."""
    best = 0.0
    for _ in range(rounds):
        runs = bench.pass_minutes()
        began_s = time.perf_counter()
        bench.drain()
        best = max(best, runs / (time.perf_counter() - began_s))
    return best


def celerys_own(app: Any, rounds: int, **options: Any) -> float:
    """Return messages per second of ``Scheduler.apply_async``, as a beat calls it."""
    scheduler = Scheduler(app, lazy=True)
    entry = make_entry(app)(form_of("lanes.check", options), "check", [1], {"url": "https://example.org/health/1"})
    best = 0.0
    with app.connection_for_write() as connection:
        producer = app.amqp.Producer(connection, auto_declare=False)
        for _ in range(rounds):
            began_s = time.perf_counter()
            for _ in range(CELERY_SENDS):
                scheduler.apply_async(entry, producer=producer, advance=False)
            best = max(best, CELERY_SENDS / (time.perf_counter() - began_s))
    return best


def parcels_of(batches: list[Batch]) -> list[Parcel]:
    """Return all parcels."""
    return [parcel for batch in batches for parcel in batch.parcels]


def redis_ceiling(server: PrivateRedis, batches: list[Batch], rounds: int) -> float:
    """Return messages per second of blind variadic LPUSHes of the same bytes."""
    best = 0.0
    for _ in range(rounds):
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
            best = max(best, sum(parcel.size for parcel in parcels) / (time.perf_counter() - began_s))
    return best


def amqp_ceiling(server: PrivateRabbit, batches: list[Batch], rounds: int) -> float:
    """Return messages per second of the same frames, written blindly and confirmed by the broker."""
    best = 0.0
    for _ in range(rounds):
        connection = amqp.Connection(f"127.0.0.1:{server.port}")
        connection.connect()
        channel = connection.channel()
        channel.confirm_select()
        settled = [0]

        def on_ack(tag: int, multiple: bool, settled: list[int] = settled) -> None:
            settled[0] = max(settled[0], tag) if multiple else settled[0] + 1

        channel.events["basic_ack"].add(on_ack)
        parcels = parcels_of(batches)
        total = sum(parcel.size for parcel in parcels)
        began_s = time.perf_counter()
        written = 0
        for parcel in parcels:
            connection.transport.write(memoryview(parcel.data))
            written += parcel.size
            while settled[0] < written - 4_000:
                connection.drain_events(timeout=10)
        while settled[0] < total:
            connection.drain_events(timeout=10)
        best = max(best, total / (time.perf_counter() - began_s))
        connection.close()
    return best


def on_redis(count: int, rounds: int) -> Iterator[Row]:
    """Measure on a private Redis."""
    with PrivateRedis() as server, redis.Redis.from_url(server.url) as client:
        own = celerys_own(make_app(server.url), rounds)
        yield Row("Celery's own way into Redis", own)
        client.flushall()
        with FastBench(make_app(server.url)) as bench:
            loaded(bench, count)
            rendered, batches = in_process(bench, rounds)
            yield Row("in process: due job to finished Redis message", rendered, "per CPU second; target 500,000")
            with emptied(client.flushall):
                fast = end_to_end(bench, rounds)
            with emptied(client.flushall):
                ceiling = redis_ceiling(server, batches, rounds)
        yield Row("blind LPUSH of the same bytes", ceiling)
        yield Row("fast lane into Redis", fast, f"{fast / own:.0f} x Celery's way; {fast / ceiling:.0%} of the ceiling")


def on_rabbit(count: int, rounds: int, kind: str) -> Iterator[Row]:
    """Measure on a private RabbitMQ with a classic or a quorum queue."""
    with PrivateRabbit(free_port()) as server:
        arguments = {"x-queue-type": kind}
        conf = {"task_queues": [Queue(kind, queue_arguments=arguments)], "task_default_queue": kind}
        app = make_app(server.url, broker_transport_options={"confirm_publish": True}, **conf)
        own = celerys_own(app, rounds)
        yield Row(f"Celery's own way into RabbitMQ ({kind}, confirms)", own)
        with FastBench(make_app(server.url, **conf)) as bench:
            loaded(bench, count)
            rendered, batches = in_process(bench, rounds)
            yield Row("in process: due job to finished AMQP message", rendered, "per CPU second; target 500,000")
            purge = lambda: server.ctl("purge_queue", kind)  # noqa: E731
            with emptied(purge):
                fast = end_to_end(bench, rounds)
            with emptied(purge):
                ceiling = amqp_ceiling(server, batches, rounds)
        yield Row(f"the same frames, blind but confirmed ({kind})", ceiling)
        note = f"{fast / own:.0f} x Celery's way; {fast / ceiling:.0%} of the ceiling"
        yield Row(f"fast lane into RabbitMQ ({kind}, confirms)", fast, note)


@contextmanager
def emptied(empty: Callable[[], Any]) -> Iterator[None]:
    """Empty the broker before and after."""
    empty()
    yield
    empty()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=60_000, help="monitors that are due in one round")
    parser.add_argument("--rounds", type=int, default=3, help="the best of this many is printed")
    parser.add_argument("--brokers", default="redis,classic,quorum")
    given = parser.parse_args()
    print(f"{os.cpu_count()} cores; {given.runs:,} runs a round; messages per second, best of {given.rounds}")
    for broker in given.brokers.split(","):
        print(f"\n{broker}")
        if broker == "redis":
            rows = on_redis(given.runs, given.rounds)
        else:
            rows = on_rabbit(min(given.runs, 20_000), given.rounds, broker)
        for row in rows:
            print(f"  {row.what:<58}{row.per_s:>12,.0f}  {row.note}")


if __name__ == "__main__":
    main()
