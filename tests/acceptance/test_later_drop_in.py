"""Every shape of a task with an eta, stored and sent by the beat: real beat, real worker, Redis and RabbitMQ."""

from __future__ import annotations

import json
import sqlite3
import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import redis
from support.processes import DjangoProject, Project, redis_conf

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.processes, pytest.mark.redis]

TASKS = """
    import celery_wheelbeat.worker
    celery_wheelbeat.worker.install(app)

    @app.task
    def add(*numbers):
        return sum(sum(one) if isinstance(one, list) else one for one in numbers)

    @app.task(bind=True, max_retries=5)
    def flaky(self, fails):
        if self.request.retries < fails:
            raise self.retry(countdown=1)
        return [self.request.id, self.request.retries, self.request.eta]

    @app.task(bind=True)
    def parent(self):
        child = add.apply_async((20, 22), countdown=1)
        return [child.id, self.request.id]

    @app.task(bind=True)
    def failing(self):
        raise ValueError("on purpose")

    @app.task
    def failed(request, exc, traceback):
        note.delay("failed", str(exc))
"""
SHAPES = """
    import json, uuid
    from datetime import UTC, datetime, timedelta
    from celery import chain, chord, group
    from celery_wheelbeat.later import drop_in
    from proj import add, app, failed, failing, flaky, note, parent

    linked = str(uuid.uuid4())
    results = {
        "countdown": add.apply_async((1, 2), countdown=1),
        "eta": add.apply_async((1, 2), eta=datetime.now(UTC) + timedelta(seconds=1)),
        "task_id": add.apply_async((1, 2), countdown=1, task_id=str(uuid.uuid4())),
        "send_task": app.send_task("proj.add", (1, 2), countdown=1),
        "signature": app.signature("proj.add", (1, 2)).set(countdown=1).delay(),
        "link": add.apply_async((1, 2), countdown=1, link=add.s(10).set(task_id=linked)),
        "chain": chain(add.s(1), add.s(2).set(countdown=1), add.s(4)).apply_async(countdown=1),
        "group": group(add.s(1).set(countdown=1), add.s(2)).apply_async(),
        "chord": chord([add.s(1).set(countdown=1), add.s(2).set(countdown=2)], add.s(4)).apply_async(),
        "chord body": chord([add.s(1), add.s(2)], add.s(4).set(countdown=1)).apply_async(),
        "retry": flaky.apply_async((2,)),
        "parent": parent.delay(),
    }
    failing.apply_async(countdown=1, link_error=failed.s())
    got = {name: result.get(timeout=60) for name, result in results.items()}
    got["linked"] = app.AsyncResult(linked).get(timeout=60)
    got["child"] = app.AsyncResult(got["parent"][0]).get(timeout=60)
    got["children"] = [child.id for child in results["parent"].children]
    got["ids"] = {name: result.id for name, result in results.items()}
    got["counts"] = drop_in.counts(app)
    print(json.dumps(got))
"""


BROKERS = ["redis", pytest.param("amqp", marks=pytest.mark.amqp)]


@pytest.fixture(params=[*BROKERS, "redis keeps them"])
def project(request: pytest.FixtureRequest, tmp_path: Path, redis_url: str) -> Iterator[Project]:
    conf = redis_conf(
        redis_url,
        result_backend=redis_url,
        wheelbeat_database_url=f"sqlite:///{tmp_path}/wheelbeat.sqlite3",
        wheelbeat_later_from=0,
        wheelbeat_tick=0.25,
    )
    if request.param == "redis keeps them":
        conf |= {"wheelbeat_later_url": redis_url, "wheelbeat_namespace": str(uuid.uuid4())}
    if request.param == "amqp":
        conf |= {
            "broker_url": request.getfixturevalue("amqp_url"),
            "broker_transport_options": {"confirm_publish": True},
        }
    with Project(tmp_path, conf, extra=TASKS) as project:
        assert project.celery("wheelbeat", "migrate").wait() == 0
        yield project


def stored(project: Project) -> list[Any]:
    """Return task, args and options of every row."""
    if "wheelbeat_later_url" in project.conf:
        with redis.Redis.from_url(project.conf["wheelbeat_later_url"]) as client:
            pattern = f"wb:later:{{{project.conf['wheelbeat_namespace']}}}:s:*"
            texts = [
                value
                for key in client.scan_iter(pattern)
                for name, value in client.hgetall(key).items()
                if name != b"v"
            ]
        rows = sorted(map(json.loads, texts), key=lambda row: row[0])
        return [(task, args, options) for _, _, task, args, _, options in rows]
    with closing(sqlite3.connect(project.folder / "wheelbeat.sqlite3", timeout=10)) as connection:
        return connection.execute("SELECT task, args, options FROM wheelbeat_later WHERE task <> ''").fetchall()


def test_every_shape_is_stored_and_has_its_result(project: Project) -> None:
    worker = project.worker()
    beat = project.beat()
    got = json.loads(project.python_code(SHAPES).strip().splitlines()[-1])
    assert [got[name] for name in ("countdown", "eta", "task_id", "send_task", "signature", "link")] == [3] * 6
    assert (got["linked"], got["chain"], got["chord"], got["chord body"], got["child"]) == (13, 7, 7, 7, 42)
    assert got["group"] == [1, 2]
    assert got["retry"] == [got["ids"]["retry"], 2, None], "the same id, no eta"
    assert got["children"] == [got["parent"][0]], "the trail"
    assert got["counts"] == {"stored": 11}
    project.wait_for_runs(lambda runs: any(run.args[0] == "failed" for run in runs), "the errback")
    rows = stored(project)
    # In the worker: two retries, a link of a chain, the body of a chord, a child.
    assert len(rows) == 11 + 5
    assert [json.loads(options)["retries"] for task, _, options in rows if task == "proj.flaky"] == [1, 2]
    (child,) = (json.loads(options) for _, args, options in rows if args == "[20, 22]")
    assert child["parent_id"] == child["root_id"] == got["parent"][1]
    assert "ETA" not in worker.output
    assert beat.stop() == 0


def test_a_revoked_task_is_not_sent(project: Project) -> None:
    code = """
    import uuid
    from celery.exceptions import TaskRevokedError
    from proj import app, note
    options = [{}, {"task_id": str(uuid.uuid4())}]
    results = [note.apply_async((n,), countdown=60, **options[n]) for n in range(2)]
    app.control.revoke([result.id for result in results])
    late = note.apply_async((2,), countdown=2)
    for result in results:
        try:
            result.get(timeout=10)
        except TaskRevokedError:
            print("revoked")
    """
    assert project.python_code(code).split() == ["revoked", "revoked"]
    assert len(stored(project)) == 1
    project.beat()
    project.worker()
    runs = project.wait_for_runs(bool, "the other task is sent")
    assert [run.args for run in runs] == [[2]]


@pytest.mark.parametrize("project", BROKERS, indirect=True)
def test_a_store_that_is_away_loses_nothing(project: Project) -> None:
    (project.folder / "wheelbeat.sqlite3").rename(project.folder / "elsewhere")
    (project.folder / "wheelbeat.sqlite3").mkdir()  # cannot be opened
    code = """
    import json, logging
    logging.basicConfig()
    from celery_wheelbeat.later import drop_in
    from proj import app, note
    ids = [note.apply_async((n,), countdown=1).id for n in range(3)]
    print(json.dumps([ids, drop_in.counts(app)]))
    """
    ids, counts = json.loads(project.python_code(code).strip().splitlines()[-1])
    assert counts == {"store_away": 3}
    project.worker()
    runs = project.wait_for_runs(lambda runs: len(runs) == 3, "Celery sends them")
    assert sorted(run.id for run in runs) == sorted(ids)


def test_with_django_a_web_process_needs_no_code_and_a_transaction_decides(tmp_path: Path, redis_url: str) -> None:
    conf = redis_conf(redis_url, wheelbeat_later_from=1, wheelbeat_tick=0.25)
    with DjangoProject(tmp_path, conf) as project:
        printed = project.django(
            """
            import json
            from django.db import transaction
            from celery_wheelbeat.later import drop_in
            from proj import app, note
            with transaction.atomic():
                kept = note.apply_async(("kept",), countdown=2).id
            with transaction.atomic():
                note.apply_async(("rolled back",), countdown=2)
                transaction.set_rollback(True)
            print(json.dumps([kept, drop_in.counts(app)]))
            """
        )
        kept, counts = json.loads(printed.strip().splitlines()[-1])
        assert counts == {"stored": 2}
        project.worker()
        project.beat()
        project.django("from proj import note; note.apply_async(('last',), countdown=3)")
        runs = project.wait_for_runs(lambda runs: any(run.args == ["last"] for run in runs), "the last one is sent")
        assert [run.args for run in runs] == [["kept"], ["last"]]
        assert runs[0].id == kept
