"""The cells of the state table that need no dying worker: everything that Celery does with a message, unchanged."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from support.claims import ClaimProject, now_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.processes, pytest.mark.redis]


@pytest.fixture(scope="module")
def project(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClaimProject]:
    """One worker with two pool processes for the whole module; results, claims and broker in Redis."""
    conf = {
        "broker_url": redis_url,
        "result_backend": redis_url,
        "task_track_started": True,
        "worker_enable_remote_control": True,
        "worker_send_task_events": True,
    }
    with ClaimProject(tmp_path_factory.mktemp("table"), conf, signals=True) as project:
        project.pool_worker()
        yield project


def events(project: ClaimProject, run_id: str) -> list[str]:
    """Return what the journal has on one id, in order."""
    return [line.event for line in project.lines() if line.id == run_id]


def until_logged(project: ClaimProject, run_id: str, text: str, times: int = 1) -> None:
    """Wait until the workers have logged ``text`` about ``run_id`` that often."""

    def enough() -> bool:
        lines = [line for process in project.processes for line in list(process.lines)]
        return sum(run_id in line and text in line for line in lines) >= times

    project.until(enough, f"{times} × {text!r} about {run_id}")


@pytest.mark.parametrize("task", ["retrying", "autoretrying"])
def test_each_retry_is_elected_once(project: ClaimProject, task: str) -> None:
    run_id, fire_ms = str(uuid4()), now_ms()
    for _ in range(3):
        project.publish(task, run_id, fire_ms=fire_ms)
    until_logged(project, run_id, "dropped (other)", 2)
    project.until(lambda: "done" in events(project, run_id), "end of the retries")
    retries = [line.more["retries"] for line in project.lines("start") if line.id == run_id]
    assert retries == list(range(len(retries)))
    assert len(retries) == {"retrying": 3, "autoretrying": 2}[task]
    assert events(project, run_id).count("done") == 1


def test_a_replacement_runs_once(project: ClaimProject) -> None:
    run_id, fire_ms = str(uuid4()), now_ms()
    for _ in range(3):
        project.publish("replacing", run_id, fire_ms=fire_ms)
    until_logged(project, run_id, "dropped (other)", 2)
    project.until(lambda: "child" in events(project, run_id), "the replacement")
    assert events(project, run_id).count("start") == 1
    assert [line.more["nesting"] for line in project.lines("child") if line.id == run_id] == [1]


def test_the_children_of_a_chord_run_once(project: ClaimProject) -> None:
    run_id, fire_ms = str(uuid4()), now_ms()
    for _ in range(3):
        project.publish("chording", run_id, fire_ms=fire_ms)
    until_logged(project, run_id, "dropped (other)", 2)
    project.until(lambda: any(line.more["parent"] == run_id for line in project.lines("total")), "the chord's body")
    assert [line.more["total"] for line in project.lines("total") if line.more["parent"] == run_id] == [6]


def test_a_message_that_its_task_gives_back_runs_again_and_a_copy_does_not(project: ClaimProject) -> None:
    run_id, fire_ms = str(uuid4()), now_ms()
    for _ in range(2):
        project.publish("rejecting", run_id, fire_ms=fire_ms)
    project.until(lambda: "done" in events(project, run_id), "the third attempt")
    until_logged(project, run_id, "dropped (other)")
    assert events(project, run_id).count("start") == 3


def test_copies_with_an_eta_are_claimed_when_they_execute(project: ClaimProject) -> None:
    run_id, fire_ms, eta = str(uuid4()), now_ms(), datetime.now(UTC) + timedelta(seconds=1)
    for _ in range(3):
        project.publish("record", run_id, fire_ms=fire_ms, eta=eta)
    until_logged(project, run_id, "dropped (other)", 2)
    [start] = [line for line in project.lines("start") if line.id == run_id]
    assert start.at_ms >= eta.timestamp() * 1000


def test_a_rate_limit_is_kept(project: ClaimProject) -> None:
    began_ms, runs, copies = now_ms(), 8, 2
    ids = project.publish_copies("limited", runs, copies)
    last = str(uuid4())
    project.publish("limited", last)
    for run_id in ids:
        until_logged(project, run_id, "dropped (other)", copies - 1)
    project.until(lambda: "done" in events(project, last), "the last of the rate-limited runs")
    for run_id in ids:
        assert events(project, run_id).count("start") == 1
    [start] = [line for line in project.lines("start") if line.id == last]
    # every message waits for its turn, copies included: at 20/s the last one starts after all before it have had theirs
    assert start.at_ms - began_ms >= 0.99 * runs * copies * 1_000 / 20


def test_a_copy_is_no_success_to_those_who_watch_events(project: ClaimProject) -> None:
    seen: list[tuple[str, str]] = []

    def until_heard(*event: str) -> None:
        def heard() -> bool:
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.2)
            return event in seen

        project.until(heard, f"the event {event}")

    with project.app.connection_for_read() as outer:
        handlers = {"*": lambda event: seen.append((event["type"], event.get("uuid", "")))}
        with project.app.events.Receiver(outer, handlers=handlers).consumer_context() as (connection, _, _):
            until_heard("worker-heartbeat", "")  # Redis keeps no event for those who listen later
            run_id, fire_ms = str(uuid4()), now_ms()
            project.publish("record", run_id, fire_ms=fire_ms)
            until_heard("task-succeeded", run_id)
            project.publish("record", run_id, fire_ms=fire_ms)
            until_logged(project, run_id, "dropped (other)")
            for later in (str(uuid4()), str(uuid4()), str(uuid4())):  # an event of the copy would come before theirs
                project.publish("record", later)
                until_heard("task-succeeded", later)
    assert seen.count(("task-received", run_id)) == 2
    assert [kind for kind, uuid in seen if uuid == run_id and kind not in ("task-received", "task-started")] == [
        "task-succeeded"
    ]


def test_a_revoked_run_makes_no_claim(project: ClaimProject) -> None:
    run_id = str(uuid4())
    answered(project, partial(project.app.control.revoke, run_id))
    project.publish("record", run_id)
    until_logged(project, run_id, "Discarding revoked task")
    assert events(project, run_id) == []


def test_a_dropped_copy_leaves_no_trace(project: ClaimProject) -> None:
    run_id, fire_ms = str(uuid4()), now_ms()
    project.publish("record", run_id, fire_ms=fire_ms)
    project.until(lambda: "success" in events(project, run_id), "the first run")
    meta = project.app.backend.get_task_meta(run_id)
    assert (meta["status"], meta["result"]) == ("SUCCESS", "first")
    project.publish("record", run_id, fire_ms=fire_ms)
    until_logged(project, run_id, "dropped (other)")
    assert project.app.backend.get_task_meta(run_id) == meta
    assert events(project, run_id) == ["prerun", "start", "done", "success"]


def test_a_copy_that_expires_leaves_the_result_alone(project: ClaimProject) -> None:
    run_id, fire_ms = str(uuid4()), now_ms()
    project.publish("record", run_id, fire_ms=fire_ms)
    project.until(lambda: "success" in events(project, run_id), "the first run")
    meta = project.app.backend.get_task_meta(run_id)
    project.publish("record", run_id, fire_ms=fire_ms, expires=datetime.now(UTC) - timedelta(seconds=1))
    until_logged(project, run_id, "Discarding revoked task")
    assert project.app.backend.get_task_meta(run_id) == meta


def test_a_twin_of_the_running_message_waits_and_is_dropped_after_its_success(project: ClaimProject) -> None:
    run_id, fire_ms, headers = str(uuid4()), now_ms(), {"wheelbeat_nonce": uuid4().hex}
    gate = project.gate()
    project.publish("short", run_id, fire_ms=fire_ms, headers=headers, args=(gate,))
    project.until(lambda: "start" in events(project, run_id), "the first message")
    project.publish("short", run_id, fire_ms=fire_ms, headers=headers, args=(gate,))
    until_logged(project, run_id, "waits: its execution may still be running", 2)
    project.open(gate)
    until_logged(project, run_id, "dropped (finished)")
    project.publish("short", run_id, fire_ms=fire_ms, headers=headers, args=(gate,))
    until_logged(project, run_id, "dropped (finished)", 2)
    assert [event for event in events(project, run_id) if event in ("start", "done")] == ["start", "done"]


def test_a_failed_run_whose_message_is_published_again_by_hand_runs_and_a_copy_does_not(project: ClaimProject) -> None:
    run_id, fire_ms, headers = str(uuid4()), now_ms(), {"wheelbeat_nonce": uuid4().hex}
    for starts in (1, 2, 3):
        project.publish("failing", run_id, fire_ms=fire_ms, headers=headers)
        project.until(lambda: events(project, run_id).count("start") == starts, "its execution")  # noqa: B023
        until_logged(project, run_id, "raised unexpected", starts)
    project.publish("failing", run_id, fire_ms=fire_ms)
    until_logged(project, run_id, "dropped (other)")
    assert events(project, run_id).count("start") == 3


def test_a_task_that_is_called_by_hand_under_the_id_of_a_run_runs(project: ClaimProject) -> None:
    run_id = str(uuid4())
    project.publish("record", run_id)
    project.until(lambda: "done" in events(project, run_id), "the run")
    project.app.send_task("proj.record", task_id=run_id)
    project.until(lambda: events(project, run_id).count("done") == 2, "the call")


def test_a_constant_task_id_runs_at_every_fire_time(project: ClaimProject) -> None:
    run_id, fire_ms = f"nightly-{uuid4()}", now_ms()
    for day in range(3):
        for _ in range(2):
            project.publish("record", run_id, fire_ms=fire_ms - day * 60_000)
    until_logged(project, run_id, "dropped (other)", 3)
    project.until(lambda: events(project, run_id).count("done") == 3, "three days")


def test_two_jobs_that_share_an_id_do_not_take_each_other_s_runs(project: ClaimProject) -> None:
    run_id, fire_ms = f"nightly-{uuid4()}", now_ms()
    for _ in range(2):
        for name in ("one", "other"):
            project.publish("record", run_id, fire_ms=fire_ms, headers={"periodic_task_name": name})
    until_logged(project, run_id, "dropped (other)", 2)
    project.until(lambda: events(project, run_id).count("done") == 2, "one run of each")


def test_what_shares_an_id_without_being_a_copy_runs_and_its_copies_do_not(project: ClaimProject) -> None:
    run_id, fire_ms = str(uuid4()), now_ms()
    project.publish("record", run_id, fire_ms=fire_ms)
    project.until(lambda: "done" in events(project, run_id), "the first task")
    for _ in range(2):
        project.publish("record", run_id, fire_ms=fire_ms, kwargs={"value": "another"})
    until_logged(project, run_id, "runs although")
    until_logged(project, run_id, "dropped (other)")
    project.until(lambda: events(project, run_id).count("done") == 2, "both tasks")


def test_a_message_of_nobody_runs_each_time(project: ClaimProject) -> None:
    run_id = str(uuid4())
    for _ in range(3):
        project.app.send_task("proj.record", task_id=run_id)
    project.until(lambda: events(project, run_id).count("done") == 3, "three runs")


def test_headers_that_are_not_ours_do_not_stop_a_task(project: ClaimProject) -> None:
    run_id = str(uuid4())
    project.publish("record", run_id, headers={"wheelbeat_fire_ms": "noon"})
    until_logged(project, run_id, "without a claim")
    project.until(lambda: "done" in events(project, run_id), "the run")


def test_copies_are_recognised_by_content_where_the_task_wants_it(project: ClaimProject) -> None:
    first, second, fire_ms = str(uuid4()), str(uuid4()), now_ms()
    project.publish("by_content", first, fire_ms=fire_ms, kwargs={"value": first})
    project.until(lambda: "done" in events(project, first), "the first id")
    project.publish("by_content", second, fire_ms=fire_ms, kwargs={"value": first})
    until_logged(project, second, "dropped (other)")
    project.publish("by_content", second, fire_ms=fire_ms, kwargs={"value": second})
    project.until(lambda: "done" in events(project, second), "other arguments")


def test_a_run_older_than_claims_are_remembered(project: ClaimProject) -> None:
    run_id, old_ms = str(uuid4()), now_ms() - 86_400_000 - 60_000
    project.publish("record", run_id, fire_ms=old_ms)
    until_logged(project, run_id, "more than 86400 s ago")
    project.until(lambda: "done" in events(project, run_id), "the late run")
    dropped = str(uuid4())
    project.publish("fresh", dropped, fire_ms=old_ms)
    until_logged(project, dropped, "dropped (stale)")
    assert events(project, dropped) == []


def test_every_outcome_is_counted_over_all_pool_processes(project: ClaimProject) -> None:
    before = counters(project)
    ids = project.publish_copies("record", 10, 3)
    for run_id in ids:
        until_logged(project, run_id, "dropped (other)", 2)
    project.until(lambda: counters(project)["elected"] == before["elected"] + 10, "the elections in the counters")
    assert counters(project)["dropped_other"] == before["dropped_other"] + 20


def answered(project: ClaimProject, ask: Callable[..., Any]) -> dict[str, Any]:
    """Ask by remote control until the worker answers: it is ready a little before it listens."""
    replies: list[dict[str, Any]] = []

    def is_heard() -> bool:
        replies[:] = ask(reply=True, timeout=2, limit=1) or []
        return bool(replies)

    project.until(is_heard, "an answer of the worker")
    return replies[0]


def counters(project: ClaimProject) -> dict[str, int]:
    """Ask the worker by remote control."""
    [answer] = answered(project, partial(project.app.control.broadcast, "wheelbeat_claims")).values()
    assert answer["hook"] == "trace"
    return dict(answer["counters"])
