"""Of the copies of a run one executes: every pair of store and broker, every pool, real workers."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg
import pytest
import redis
from support.claims import ClaimProject, django_project, now_ms
from support.processes import filesystem_conf

from celery_wheelbeat.dispatch.messages.claim_headers import worker_headers
from project import folder_broker

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes

COUNT, COPIES = 100, 3


def project_of(pair: str, request: pytest.FixtureRequest, folder: Path) -> ClaimProject:
    """Return a project whose results (and so claims) and broker are those of ``pair``."""

    def url(name: str) -> str:
        return str(request.getfixturevalue(f"{name}_url"))

    match pair:
        case "redis+redis":
            return ClaimProject(folder, {"broker_url": url("redis"), "result_backend": url("redis")})
        case "postgresql+rabbitmq":
            return ClaimProject(folder, {"broker_url": url("amqp"), "result_backend": f"db+{url('postgres')}"})
        case "mariadb+redis":
            return ClaimProject(folder, {"broker_url": url("redis"), "wheelbeat_dedup_url": url("mysql")})
        case "django-db+redis":
            return django_project(folder, url("postgres"), broker_url=url("redis"))
    files = filesystem_conf(folder, result_backend=f"db+sqlite:///{folder}/results.sqlite3")
    project = ClaimProject(folder, files)
    project.app.conf.broker_transport = folder_broker.Transport
    return project


PAIRS = ["redis+redis", "postgresql+rabbitmq", "mariadb+redis", "sqlite+filesystem"]


@pytest.mark.parametrize("pair", ["redis+redis", "postgresql+rabbitmq"])
def test_of_three_copies_one_runs(pair: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    assert_one_of_three_runs(project_of(pair, request, tmp_path), COUNT)


@pytest.mark.soak
@pytest.mark.parametrize("pair", [*PAIRS, "django-db+redis"])
def test_of_three_copies_of_2000_runs_one_runs(pair: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    assert_one_of_three_runs(project_of(pair, request, tmp_path), 2_000)


def assert_one_of_three_runs(project: ClaimProject, count: int) -> None:
    """Publish ``count`` runs in three copies to two workers of two pool processes."""
    with project:
        for _ in range(2):
            project.pool_worker()
        ids = project.publish_copies("record", count, COPIES)
        project.until_settled(count * COPIES, timeout_s=1_800)
        assert project.logged("Copies of runs are dropped; claims in") == 2
        assert project.count("start") == dict.fromkeys(ids, 1)
        assert project.logged("dropped (other)") == count * (COPIES - 1)


def test_without_the_hook_every_copy_runs(redis_url: str, tmp_path: Path) -> None:
    assert_every_copy_runs(redis_url, tmp_path, 20)


@pytest.mark.soak
def test_without_the_hook_every_copy_of_2000_runs_runs(redis_url: str, tmp_path: Path) -> None:
    assert_every_copy_runs(redis_url, tmp_path, 2_000)


def assert_every_copy_runs(redis_url: str, folder: Path, count: int) -> None:
    """Publish ``count`` runs in three copies to two workers that have Celery's own deduplication, and nothing else."""
    conf = {
        "broker_url": redis_url,
        "result_backend": redis_url,
        "task_acks_late": True,
        "worker_deduplicate_successful_tasks": True,
    }
    with ClaimProject(folder, conf, installed=False) as project:
        for _ in range(2):
            project.pool_worker()
        ids = project.publish_copies("record", count, COPIES)
        project.until_settled(count * COPIES, timeout_s=1_800)
        assert project.count("start") == dict.fromkeys(ids, COPIES)


POOLS = ["solo", "threads", "gevent"]


@pytest.mark.redis
@pytest.mark.postgres
@pytest.mark.parametrize(
    ("pool", "store", "count"),
    [
        *zip(POOLS, ["redis_url", "postgres_url", "redis_url"], [20] * 3, strict=True),
        *(
            pytest.param(pool, store, 100, marks=pytest.mark.soak)
            for pool, store in product(POOLS, ["redis_url", "postgres_url"])
        ),
    ],
)
def test_pools_without_processes(
    pool: str, store: str, count: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    conf = {"broker_url": request.getfixturevalue("redis_url"), "wheelbeat_dedup_url": request.getfixturevalue(store)}
    with ClaimProject(tmp_path, conf) as project:
        project.pool_worker(pool=pool, concurrency=4)
        early = project.publish_copies("record", count, COPIES)
        late = project.publish_copies("late", count, COPIES, countdown=0.5)
        project.until_settled(2 * count * COPIES)
        assert project.logged("Copies of runs are dropped; claims in") == 1
        assert project.count("start") == dict.fromkeys(early + late, 1)


@pytest.mark.redis
@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_a_lease_is_prolonged_where_the_pool_is_the_main_process(pool: str, redis_url: str, tmp_path: Path) -> None:
    headers = worker_headers("monitor:1", "tests", overlap="skip")
    first, second = (str(uuid4()) for _ in range(2))
    conf = {"broker_url": redis_url, "result_backend": redis_url}
    with ClaimProject(tmp_path, conf) as project, redis.Redis.from_url(redis_url) as store:
        project.pool_worker(pool=pool, concurrency=4)
        gate = project.gate()
        project.publish("short", first, args=(gate,), headers=headers)
        project.until(lambda: project.count("start")[first] == 1, "the first run")

        def ends_ms() -> int:
            return int(store.hget("wb:lease:job:tests/monitor:1", "until") or 0)

        unprolonged_ms = ends_ms()
        project.until(lambda: now_ms() > unprolonged_ms, "what would have been the end of the lease")
        project.publish("short", second, headers=headers)
        project.until(lambda: project.logged("skipped: another execution holds the lease") == 1, "the skip")
        assert ends_ms() > unprolonged_ms
        project.open(gate)
        project.until(lambda: ends_ms() == 0, "the end of the lease with the run")
        assert project.count("done") == {first: 1}


UNKNOWN_CELERY = """
import celery.app.trace, celery.worker.request
from celery import current_app

_tracers = {}

def trace_elsewhere(task, uuid, request, body, content_type, content_encoding, **_):
    args, kwargs, embed = (
        celery.app.trace.loads_message(body, content_type, content_encoding, accept=None) if content_type else body
    )
    found = current_app.tasks[task]
    if task not in _tracers:
        _tracers[task] = celery.app.trace.build_tracer(task, found, app=current_app)
    request.update(args=args, kwargs=kwargs, is_eager=False, **embed)
    R, I, T, Rstr = _tracers[task](uuid, args, kwargs, request)
    return (1, R, T) if I else (0, Rstr, T)

celery.app.trace.fast_trace_task = celery.worker.request.fast_trace_task = trace_elsewhere
"""


@pytest.mark.redis
def test_a_celery_that_traces_elsewhere_gets_the_weaker_hook_and_a_warning(redis_url: str, tmp_path: Path) -> None:
    conf = {"broker_url": redis_url, "result_backend": redis_url}
    with ClaimProject(tmp_path, conf, before=UNKNOWN_CELERY) as project:
        project.pool_worker()
        assert project.logged("by Task.before_start, because Celery executes tasks without calling task.__trace__") == 1
        ids = project.publish_copies("record", 20, COPIES)
        project.until_settled(20 * COPIES)
        assert project.count("start") == dict.fromkeys(ids, 1)
        rejected = project.publish_copies("rejecting", 1, 1)
        project.until(lambda: project.count("done")[rejected[0]] == 1, "the third attempt")
        assert project.count("start")[rejected[0]] == 3


@pytest.mark.redis
def test_a_backend_that_cannot_keep_claims_is_named_once(redis_url: str, tmp_path: Path) -> None:
    with ClaimProject(tmp_path, {"broker_url": redis_url, "result_backend": "rpc://"}) as project:
        project.pool_worker()
        [warning] = [line for line in project.processes[0].lines if "wheelbeat_dedup_url" in line]
        assert "result_backend (rpc) cannot keep claims" in warning
        ids = project.publish_copies("record", 3, 2)
        project.until_settled(6)
        assert project.count("start") == dict.fromkeys(ids, 2)


@pytest.mark.redis
def test_a_task_that_cannot_keep_its_promise_stops_the_start(redis_url: str, tmp_path: Path) -> None:
    extra = """
    @app.task(wheelbeat={"outage": "closed"})
    def early():
        pass
    """
    with ClaimProject(tmp_path, {"broker_url": redis_url, "result_backend": redis_url}, extra=extra) as project:
        worker = project.celery("worker", "-P", "solo", "-l", "info")
        assert worker.wait() != 0
        assert "task proj.early: outage = 'closed'" in worker.output
        assert "acks_late=True" in worker.output


@pytest.mark.redis
def test_the_setting_alone_installs_and_switches_off(redis_url: str, tmp_path: Path) -> None:
    conf = {"broker_url": redis_url, "result_backend": redis_url}
    with ClaimProject(tmp_path / "off", {**conf, "wheelbeat_worker": False}) as project:
        project.pool_worker()
        ids = project.publish_copies("record", 2, 2)
        project.until_settled(4)
        assert project.count("start") == dict.fromkeys(ids, 2)
    with ClaimProject(tmp_path / "on", {**conf, "wheelbeat_worker": True}, installed=False) as project:
        project.pool_worker()
        ids = project.publish_copies("record", 2, 2)
        project.until_settled(4)
        assert project.count("start") == dict.fromkeys(ids, 1)


@pytest.mark.redis
@pytest.mark.postgres
def test_django_installs_by_itself_and_a_copy_does_not_touch_the_stored_result(
    redis_url: str, postgres_url: str, tmp_path: Path
) -> None:
    project = django_project(tmp_path, postgres_url, broker_url=redis_url, task_track_started=True)
    assert_one_of_three_runs(project, COUNT)
    assert project.logged("claims in result_backend (django-db)") == 2
    stored = states_in_django(postgres_url)
    assert {stored.get(run_id) for run_id in project.count("start")} == {"SUCCESS"}


def states_in_django(postgres_url: str) -> dict[str, str]:
    """Return the stored state of every run."""
    with psycopg.connect(postgres_url) as looker:
        return dict(looker.execute("SELECT task_id, status FROM django_celery_results_taskresult").fetchall())


@pytest.mark.redis
@pytest.mark.postgres
@pytest.mark.parametrize("backend", ["redis", "django-db"])
def test_a_copy_that_expires_does_not_touch_the_stored_result(
    backend: str, redis_url: str, postgres_url: str, tmp_path: Path
) -> None:
    conf = {"broker_url": redis_url, "task_track_started": True}
    in_django = backend == "django-db"
    with (
        django_project(tmp_path, postgres_url, **conf)
        if in_django
        else ClaimProject(tmp_path, {**conf, "result_backend": redis_url})
    ) as project:

        def states(ids: list[str]) -> list[str]:
            if in_django:
                stored = states_in_django(postgres_url)
                return [stored.get(run_id, "PENDING") for run_id in ids]
            return [project.app.AsyncResult(run_id).state for run_id in ids]

        project.pool_worker(concurrency=4)
        gate, fire_ms = project.gate(), now_ms()
        runs = [(task, str(uuid4()), args) for task, args in (("record", ()), ("failing", ()), ("late", (gate,)))]
        ids = [run_id for _, run_id, _ in runs]
        stored = ["SUCCESS", "FAILURE", "STARTED"]
        for task, run_id, args in runs:
            project.publish(task, run_id, fire_ms=fire_ms, args=args)
        project.until(lambda: states(ids) == stored, "what the elected messages store")
        over = str(uuid4())  # a run of which no message is elected
        for task, run_id, args in [*runs, ("record", over, ())]:
            past = datetime.now(UTC) - timedelta(seconds=1)
            project.publish(task, run_id, fire_ms=fire_ms, args=args, expires=past)
        project.until(lambda: project.logged("Discarding revoked task") == 4, "the end of what has expired")
        project.until(lambda: states([over]) == ["REVOKED"], "the state of the run that has expired as a whole")
        assert states(ids) == stored
        project.open(gate)
        project.until(lambda: states(ids)[2] == "SUCCESS", "the end of the run that was executing")


@pytest.mark.redis
def test_dedup_check_says_what_to_change(redis_url: str, tmp_path: Path) -> None:
    conf = {"broker_url": redis_url, "result_backend": redis_url, "worker_enable_remote_control": True}
    with (
        ClaimProject(tmp_path / "with", conf) as project,
        ClaimProject(tmp_path / "without", conf, installed=False) as old,
    ):
        good, bad = project.pool_worker(), old.pool_worker()
        names = [next(w for w in process.command if "@localhost" in w) for process in (good, bad)]
        check = project.celery("wheelbeat", "dedup-check")
        assert check.wait() == 1
        assert "claims in result_backend (redis): reachable and writable" in check.output
        assert "1 of 8 simultaneous copies elected" in check.output
        assert "maxmemory-policy is noeviction" in check.output
        assert "at most 0.0 MB" in check.output
        assert "visibility timeout 3600 s: proj.closed, proj.late, proj.lost" in check.output
        assert f"ok   {names[0]} drops copies" in check.output
        assert f"BAD  {names[1]} executes every copy" in check.output


@pytest.mark.redis
@pytest.mark.parametrize("switched_on", ["by install(app)", "by wheelbeat_worker", "by django_wheelbeat", "nowhere"])
def test_a_worker_shows_its_counters_however_the_claims_were_switched_on(
    switched_on: str, request: pytest.FixtureRequest, redis_url: str, tmp_path: Path
) -> None:
    conf = {"broker_url": redis_url, "worker_enable_remote_control": True}
    match switched_on:
        case "by django_wheelbeat":
            project = django_project(tmp_path, f"sqlite:///{tmp_path}/site.sqlite3", **conf)
        case "by wheelbeat_worker":
            conf = {**conf, "result_backend": redis_url, "wheelbeat_worker": True}
            project = ClaimProject(tmp_path, conf, installed=False)
        case way:
            conf = {**conf, "result_backend": redis_url}
            project = ClaimProject(tmp_path, conf, installed=way == "by install(app)")
    with project:
        worker = project.pool_worker()
        project.publish_copies("record", 1, 2)
        project.until_settled(2)
        name = worker.command[worker.command.index("-n") + 1]  # an answer of the one that is asked ends the wait
        asked = project.celery("inspect", "wheelbeat_claims", "--json", "--timeout", "20", "-d", name)
        assert asked.wait() == 0, asked.output
        [report] = json.loads(next(line for line in asked.lines if line.startswith("{"))).values()
        if switched_on == "nowhere":
            assert report == {"hook": "off"}
        else:
            assert report["hook"] == "trace"
            assert (report["counters"]["elected"], report["counters"]["dropped_other"]) == (1, 1)


@pytest.mark.redis
def test_dedup_check_without_a_store_names_the_setting(redis_url: str, tmp_path: Path) -> None:
    with ClaimProject(tmp_path, {"broker_url": redis_url, "result_backend": "rpc://"}) as project:
        check = project.celery("wheelbeat", "dedup-check", "--timeout", "0.5")
        assert check.wait() == 1
        assert "result_backend (rpc) cannot keep claims" in check.output
        assert "set wheelbeat_dedup_url" in check.output
        assert "no worker answers" in check.output


@pytest.mark.redis
def test_the_oldest_supported_celery(redis_url: str, tmp_path: Path, celery55: str) -> None:
    with ClaimProject(tmp_path, {"broker_url": redis_url, "result_backend": redis_url}, python=celery55) as project:
        project.pool_worker()
        assert project.logged("v5.5.") == 1
        assert project.logged("Copies of runs are dropped; claims in") == 1
        ids = project.publish_copies("record", 20, COPIES) + project.publish_copies("retrying", 2, COPIES)
        project.until(lambda: set(project.count("done")) == set(ids), "the end of every run")
        project.until(lambda: project.logged("dropped (other)") == len(ids) * (COPIES - 1), "the end of the copies")
        assert project.count("done") == dict.fromkeys(ids, 1)
        queued = {"wheelbeat_overlap": "queue_one", "wheelbeat_job": "tests/monitor:1"}
        first, second = (str(uuid4()) for _ in range(2))
        gate = project.gate()
        project.publish("short", first, args=(gate,), headers=queued)
        project.until(lambda: project.count("start")[first] == 1, "the first run of the job")
        project.publish("short", second, headers=queued)
        project.until(lambda: project.logged("waits: another execution") > 0, "the wait")
        project.open(gate)
        project.until(lambda: project.count("done")[second] == 1, "the second one, after it")
