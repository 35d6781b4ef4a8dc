"""What an app's own code does around a send, in real beats beside Celery's own scheduler."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.processes import Project, redis_conf

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes

STOCK = "celery.beat:PersistentScheduler"

BAD_AND_GOOD = """
    from celery.beat import BeatLazyFunc

    def bad():
        return open("/nowhere/settings.json").read()

    app.conf.beat_schedule = {
        "bad": {"task": "proj.note", "schedule": 1.0, "args": (BeatLazyFunc(bad),)},
        **{f"good{n}": {"task": "proj.note", "schedule": 1.0, "args": (n,)} for n in range(4)},
    }
"""

ENDS = """
    import asyncio, sys
    from celery.beat import BeatLazyFunc

    asked = []

    def lazy():
        asked.append(1)
        if len(asked) == 2:
            %s
        return 1

    app.conf.beat_schedule = {
        "ends": {"task": "proj.note", "schedule": 1.0, "args": (BeatLazyFunc(lazy),)},
        "good": {"task": "proj.note", "schedule": 1.0, "args": (1,)},
    }
"""

CONTEXT = """
    import contextvars
    from celery.beat import BeatLazyFunc
    from celery.signals import beat_init

    at_import, at_start = contextvars.ContextVar("at_import"), contextvars.ContextVar("at_start")
    at_import.set("import")

    @beat_init.connect
    def note_start(**_):
        at_start.set("beat_init")

    app.conf.beat_schedule = {
        "tick": {
            "task": "proj.note",
            "schedule": 1.0,
            "args": (BeatLazyFunc(lambda: at_import.get()), BeatLazyFunc(lambda: at_start.get())),
        },
    }
"""

BROKERS = ["redis_url", "amqp_url"]


def conf_of(url: str) -> dict[str, Any]:
    if url.startswith("redis"):
        return redis_conf(url)
    return {"broker_url": url, "broker_connection_retry_on_startup": True, "wheelbeat_namespace": "tests"}


def status_of(project: Project) -> dict[str, Any]:
    return dict(json.loads((project.folder / "celerybeat-schedule.wheelbeat").read_text())["status"])


@pytest.mark.parametrize("broker", BROKERS)
def test_an_oserror_of_a_lazy_argument_is_the_entrys_own(
    tmp_path: Path, request: pytest.FixtureRequest, broker: str
) -> None:
    conf = conf_of(request.getfixturevalue(broker))
    with Project(tmp_path, conf, extra=BAD_AND_GOOD) as project:
        beat = project.beat()
        project.worker("-Q", "celery")
        project.wait_for_runs(
            lambda runs: all(sum(run.name == f"good{n}" for run in runs) >= 6 for n in range(4)),
            "six runs of each good entry",
        )
        assert beat.stop() == 0
        status = status_of(project)
        assert beat.output.count("Message Error: bad: FileNotFoundError:") == 1
        assert beat.output.count('return open("/nowhere/settings.json").read()') == 1
        assert "Connection error" not in beat.output
        assert status["runs"]["difference"] == 0
        assert {reason for reason, runs in status["runs"]["skipped"].items() if runs} == {"error"}
        assert status["jobs"]["refused"] == 0


@pytest.mark.parametrize("ending", ["sys.exit(3)", "raise KeyboardInterrupt", 'raise asyncio.CancelledError("over")'])
def test_what_ends_celerys_own_beat_ends_this_one_with_the_same_code(
    tmp_path: Path, redis_url: str, ending: str
) -> None:
    codes = {}
    for scheduler in (STOCK, "wheelbeat"):
        folder = tmp_path / scheduler.partition(":")[0]
        with Project(folder, redis_conf(redis_url), extra=ENDS % ending) as project:
            codes[scheduler] = project.beat(scheduler=scheduler).wait()
    assert codes["wheelbeat"] == codes[STOCK]
    status = status_of(project)
    assert status["state"] == "stopped"
    assert status["runs"]["difference"] == 0
    assert status["runs"]["skipped"]["error"] == 1, "a restart does not offer the run that ended the process again"


def test_user_code_finds_the_context_variables_that_were_set_before(tmp_path: Path, redis_url: str) -> None:
    with Project(tmp_path, redis_conf(redis_url), extra=CONTEXT) as project:
        project.beat()
        project.worker()
        (first, *_) = project.wait_for_runs(lambda runs: len(runs) >= 1, "a run")
        assert first.args == ["import", "beat_init"]
