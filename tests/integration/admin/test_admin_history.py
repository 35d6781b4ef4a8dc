"""Past runs without stored runs: fire times, ids and what backends and claims keep of them."""

from __future__ import annotations

import itertools
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from celery._state import _set_current_app, current_app
from hypothesis import given, settings
from hypothesis import strategies as st
from support.site.databases import with_app

from celery_wheelbeat import run_id
from celery_wheelbeat.schedules.cron import Cron
from celery_wheelbeat.schedules.fire_times import fires
from celery_wheelbeat.schedules.intervals import Bounded, Interval, Once
from celery_wheelbeat.worker.claims import ClaimRequest, State, claim_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

T = 1_750_000_000_000
DAY_MS = 86_400_000


def app_with(backend: str) -> Celery:
    return Celery("site", broker=f"memory://{uuid.uuid4()}", backend=backend, set_as_current=False)


@pytest.fixture(params=["cache+memory://", "sql", pytest.param("redis", marks=pytest.mark.redis)])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Celery]:
    """The current app, with its results in memory, in a SQL database, in Redis."""
    backend = request.param
    if backend == "sql":
        backend = f"db+sqlite:///{tmp_path}/results.sqlite3"
    elif backend == "redis":
        backend = request.getfixturevalue("redis_url")
    former, app = current_app._get_current_object(), app_with(backend)
    app.set_current()
    yield app
    _set_current_app(former)
    app.backend.cleanup()
    app.close()


def monitor_since(hours: int, **columns: Any) -> Any:
    """Make a monitor whose schedule took effect some hours ago."""
    from django.utils import timezone

    from django_wheelbeat.models import Monitor

    made = Monitor.objects.create(**{"name": "m", "task": "t", "interval_ms": 60_000, **columns})
    return Monitor.objects.create(
        **{f.attname: getattr(made, f.attname) for f in Monitor._meta.fields if f.attname not in ("id", "name")}
        | {"name": "since", "effective_from": timezone.now() - timedelta(hours=hours)}
    )


@pytest.mark.parametrize(
    "schedule",
    [
        Bounded(Interval(60), 17_000),
        Bounded(Interval(7 * 3600), 0),
        Bounded(Cron("*/5 9-10 * * *", "Europe/Berlin"), 12_000),
        Bounded(Cron("0 0 1 * *", "UTC")),
        Bounded(Once(T - 5)),
        Bounded(Interval(60), start_ms=T - 150_000),
        Bounded(Interval(60), end_ms=T - 3 * DAY_MS),
        Bounded(Interval(10)),
    ],
    ids=str,
)
def test_past_fires_are_the_last_ones_that_were_due(schedule: Bounded) -> None:
    from django_wheelbeat.admin.past_runs import past_fires

    since_ms = T - 40 * DAY_MS
    every = list(itertools.takewhile(lambda ms: ms <= T, fires(schedule, since_ms - 1)))
    assert past_fires(schedule, T, since_ms) == every[::-1][:20]
    assert past_fires(schedule, T, T + 1) == []


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 500_000), st.integers(0, 500_000), st.integers(1, 1_000_000))
def test_past_fires_never_lie_outside_of_the_definition(every_s: int, offset_s: int, age_s: int) -> None:
    from django_wheelbeat.admin.past_runs import past_fires

    schedule = Bounded(Interval(every_s), offset_s % every_s * 1000)
    since_ms = T - age_s * 1000
    found = past_fires(schedule, T, since_ms)
    assert found == sorted(found, reverse=True)
    assert all(since_ms <= fire_ms <= T for fire_ms in found)
    assert len(found) == min(20, sum(1 for _ in itertools.takewhile(lambda ms: ms <= T, fires(schedule, since_ms - 1))))


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # Celery's own call of redis-py
def test_a_run_is_found_by_its_computed_id(db: Any, app: Celery, login: Callable[..., Any]) -> None:
    from django_wheelbeat.models import Installation

    monitor = monitor_since(2, jitter_s=0)
    namespace = str(Installation.objects.get().uuid)
    browser = login()
    page = browser.get(f"/admin/wheelbeat/monitor/{monitor.pk}/runs/")
    runs = [run for _, run in page.context["runs"]]
    assert len(runs) == 20
    assert all(run.result is None for run in runs)
    assert page.content.decode().count("no record") == 21, "once in the text above"
    for run in runs:
        assert run.run_id == run_id(f"monitor:{monitor.pk}", run.fire_ms, namespace)
        assert run.fire_ms % 60_000 == 0
    newest, other = runs[3], runs[5]
    app.backend.store_result(newest.run_id, {"up": True}, "SUCCESS")
    app.backend.store_result(other.run_id, ValueError("down <b>"), "FAILURE")
    page = browser.get(f"/admin/wheelbeat/monitor/{monitor.pk}/runs/")
    states = {run.run_id: run.result.state for _, run in page.context["runs"] if run.result}
    assert states == {newest.run_id: "SUCCESS", other.run_id: "FAILURE"}
    assert not [note for note in page.context["notes"] if "result backend" in note]


def test_claims_say_when_it_started_and_how_long_it_took(db: Any, tmp_path: Path, login: Callable[..., Any]) -> None:
    from celery_wheelbeat.worker.stores.choice import open_store

    url = f"sqlite:///{tmp_path}/claims.sqlite3"
    former, app = current_app._get_current_object(), app_with(f"file://{tmp_path}")
    app.conf.wheelbeat_dedup_url = url
    app.set_current()
    try:
        monitor = monitor_since(1, jitter_s=0)
        address = f"/admin/wheelbeat/monitor/{monitor.pk}/runs/"
        browser = login()
        page = browser.get(address)
        assert "does not answer" in page.content.decode(), "no worker has made the tables yet"
        (_, newest), (_, second), _, (_, fourth), *_ = page.context["runs"]
        store = open_store(url)
        store.prepare()
        for run, execution in ((newest, "00000001"), (second, "00000002"), (fourth, "00000004")):
            asked = ClaimRequest("0" * 16, execution, "0" * 8, redelivered=False)
            assert store.claim(claim_key(run.run_id, run.fire_ms, 0, 0), asked, 600).runs
        store.mark(claim_key(second.run_id, second.fire_ms, 0, 0), "00000002", State.DONE)
        store.mark(claim_key(fourth.run_id, fourth.fire_ms, 0, 0), "00000004", State.SKIPPED)
        page = browser.get(address)
        (_, newest), (_, second), (_, third), (_, fourth), *_ = page.context["runs"]
        assert newest.runtime_s is None
        assert newest.start_delay_s > 0
        assert second.runtime_s >= 0
        assert third.claim is None
        assert (fourth.runtime_s, fourth.start_delay_s) == (None, None)
        text = page.content.decode()
        assert ">running<" in text
        assert ">ended<" in text
        assert ">skipped<" in text
        store.close()
    finally:
        _set_current_app(former)
        app.close()


def test_what_cannot_be_looked_up_is_reported(db: Any, login: Callable[..., Any]) -> None:
    from django_wheelbeat.admin.past_runs import look_up_results
    from django_wheelbeat.models import Monitor

    assert "stores no results" in look_up_results(app_with("disabled://").backend, ["a"]).problem
    away = app_with("redis://127.0.0.1:1/0")
    away.conf.update(redis_retry_on_timeout=False, result_backend_transport_options={"retry_policy": {"timeout": 0.1}})
    assert "does not answer" in look_up_results(away.backend, ["a"]).problem
    bad = Monitor.objects.create(name="bad", task="t", cron="so so")
    page = login().get(f"/admin/wheelbeat/monitor/{bad.pk}/runs/")
    assert page.status_code == 200
    assert "so so" in page.content.decode()
    assert page.context["runs"] == []


@pytest.mark.postgres
def test_django_s_own_results_are_found(pg: Any) -> None:
    with with_app("django_celery_results"):
        from django.db import connection
        from django_celery_results.backends.database import DatabaseBackend
        from django_celery_results.models import TaskResult

        from django_wheelbeat.admin.past_runs import look_up_results

        with connection.schema_editor() as editor:
            editor.create_model(TaskResult)
        TaskResult.objects.create(task_id="a", status="SUCCESS")
        found = look_up_results(DatabaseBackend(app_with("cache+memory://")), ["a", "b"]).found
        assert {task_id: result.state for task_id, result in found.items()} == {"a": "SUCCESS"}
        assert found["a"].page == ("admin:django_celery_results_taskresult_change", TaskResult.objects.get().pk)
        TaskResult.objects.all().delete()
        with connection.schema_editor() as editor:
            editor.delete_model(TaskResult)


def test_viewers_may_see_the_runs(db: Any, login: Callable[..., Any]) -> None:
    monitor = monitor_since(1)
    address = f"/admin/wheelbeat/monitor/{monitor.pk}/runs/"
    assert login("a", only=("run_monitor", "view_scheduler")).get(address).status_code == 403
    viewer = login("b", only=("view_monitor",))
    assert viewer.get(address).status_code == 200
    assert address in viewer.get(f"/admin/wheelbeat/monitor/{monitor.pk}/change/").content.decode()
    assert viewer.post(address).status_code == 405
    assert viewer.get("/admin/wheelbeat/monitor/123456/runs/").status_code == 404
