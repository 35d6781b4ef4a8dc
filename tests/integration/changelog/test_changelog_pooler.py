"""A beat behind PgBouncer in transaction mode: each of its transactions may meet another backend, used by others."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import psycopg
import pytest
from services import PrivatePgbouncer
from support.beat.stepped import SteppedBeat
from support.changelog.places import Place, many, monitor
from support.processes import DjangoProject, redis_conf
from support.site.settings import database_of

from celery_wheelbeat.jobs.definitions import Finished
from celery_wheelbeat.sources.databases.open import from_url
from django_wheelbeat.models import Beat, Monitor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from services import PrivatePostgres

pytestmark = pytest.mark.postgres

BACKENDS = 4


@pytest.fixture
def pooler(quiet_server: PrivatePostgres) -> Iterator[PrivatePgbouncer]:
    with PrivatePgbouncer(quiet_server.url, default_pool_size=str(BACKENDS)) as pooler:
        yield pooler


def spoil_every_backend(pooler: PrivatePgbouncer) -> set[int]:
    """Use all backends at once and leave in each what a careless neighbour leaves; returns their process ids."""
    with ExitStack() as stack:
        clients = [stack.enter_context(psycopg.connect(pooler.url)) for _ in range(BACKENDS)]
        pids = set()
        for client in clients:
            client.execute("SET timezone = 'Asia/Tokyo'")
            client.execute("SET datestyle = 'German'")
            client.execute("SET bytea_output = 'escape'")
            client.execute("SET default_transaction_isolation = 'serializable'")
            client.execute("SET lock_timeout = '1ms'")
            pids.add(client.execute("SELECT pg_backend_pid()").fetchone()[0])
        for client in clients:
            client.commit()
    assert len(pids) == BACKENDS
    return pids


def last_of_the_beat(place: Place, pids: set[int]) -> int:
    """How many of the backends served the beat last."""
    return place.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(%s) AND query LIKE 'COMMIT%%' AND datname = 'postgres'",
        list(pids),
    )[0][0]


def test_each_transaction_on_another_backend(quiet: Place, pooler: PrivatePgbouncer) -> None:
    Monitor.objects.bulk_create(many(300))
    Monitor.objects.update(args="[0]")
    pids = spoil_every_backend(pooler)
    beat = SteppedBeat(from_url(pooler.url), start_ms=int(time.time()) * 1_000)
    beat.until(lambda: beat.current, "the load")
    beat.run(5)
    assert last_of_the_beat(quiet, pids) >= BACKENDS - 1
    for n in range(20):
        one = monitor(f"edited {n}", args="[0]", interval_ms=86_400_000, one_off=True)
        Monitor.objects.filter(name=f"m{n}").update(args=f"[{n}]")
        Monitor.objects.filter(name=f"m{n + 100}").delete()
        beat.run(1)
        waiting = dict(Monitor.objects.filter(finished_at=None).values_list("pk", "args"))
        assert beat.jobs(waiting) == {job_id: f"[{args}, {{}}]" for job_id, args in waiting.items()}
        beat.sources.finish({one.pk: Finished(2**41, 2**41)})
    beat.run(3)
    assert Monitor.objects.filter(finished_at__isnull=False).count() == 20
    assert Beat.objects.get().namespace == "stepped"
    assert (beat.status["failures"], beat.status["resyncs"], beat.status["drift_found"]) == (0, {}, 0)

    pooler.stop()
    beat.until(lambda: not beat.status["connected"], "the pooler is gone")
    Monitor.objects.filter(name="m200").update(args='["meanwhile"]')
    pooler.start()
    changed = Monitor.objects.get(name="m200").pk
    beat.until(lambda: beat.jobs([changed]) == {changed: '[["meanwhile"], {}]'}, "the edit made meanwhile")
    assert beat.status["resyncs"] == {}
    beat.close()


@pytest.mark.processes
@pytest.mark.redis
def test_a_site_and_its_beat_that_know_only_the_pooler(
    tmp_path: Path, redis_url: str, quiet_server: PrivatePostgres, pooler: PrivatePgbouncer
) -> None:
    with psycopg.connect(quiet_server.url, autocommit=True) as admin:
        admin.execute("CREATE DATABASE pooled")
    database = database_of(pooler.database_url("pooled"))
    with DjangoProject(tmp_path, redis_conf(redis_url), database=database) as project:
        project.django("Monitor.objects.create(name='a', task='proj.note', interval_ms=1000, args='[1]')")
        project.worker()
        beat = project.beat()
        project.wait_for_runs(lambda runs: len(runs) >= 2, "two runs")
        project.django("Monitor.objects.update(args='[2]')")
        project.wait_for_runs(lambda runs: runs[-1].args == [2], "the edit is in force")
        assert beat.stop() == 0
    pooler.stop()
    with psycopg.connect(quiet_server.url, autocommit=True) as admin:
        admin.execute("DROP DATABASE pooled WITH (FORCE)")
