"""SIGTERM at any instant ends a beat, once and in good order; signals that the app handles itself do not stop it."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from services import PrivatePostgres, PrivateRedis
from support.pauses import pause
from support.processes import WAIT_S, DjangoProject, Process, Project, redis_conf
from support.site.settings import database_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.processes

EVERY_SECOND = {"tick": {"task": "proj.note", "schedule": 1.0}}

TRAPS = """
    import signal
    import numpy
    from celery.schedules import schedule

    class LookedOver(type):
        def __getattr__(cls, name):
            if name.startswith("__array"):
                signal.raise_signal(signal.SIGTERM)
            raise AttributeError(name)

    class Operand(metaclass=LookedOver):
        def __radd__(self, other):
            return other

    class Finalised:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    class Trap(schedule):
        asked = 0

        def __init__(self, spring):
            super().__init__(1, app=app)
            self.spring = spring

        def is_due(self, last_run_at):
            Trap.asked += 1
            if Trap.asked == 10:
                self.spring()
                print("the exception is lost")
            return False, 0.1

    SPRINGS = {"numpy": lambda: numpy.zeros(1) + Operand(), "finaliser": lambda: Finalised() and None}
"""


def mark_file(project: Project) -> dict[str, Any]:
    return dict(json.loads((project.folder / "celerybeat-schedule.wheelbeat").read_text()))


def stopped(beat: Process) -> int:
    return sum("beat: Stopped" in line for line in beat.lines)


@pytest.mark.parametrize("spring", ["numpy", "finaliser"])
def test_a_sigterm_whose_exception_is_lost_ends_the_beat(tmp_path: Path, redis_url: str, spring: str) -> None:
    """The scheduling thread asks a custom schedule, and there the signal arrives where ``SystemExit`` is cleared."""
    extra = f"""{TRAPS}
    trap = {{"task": "proj.note", "schedule": Trap(SPRINGS[{spring!r}])}}
    app.conf.beat_schedule = {{"tick": {{"task": "proj.note", "schedule": 1.0}}, "trap": trap}}
    """
    with Project(tmp_path, redis_conf(redis_url, wheelbeat_tick=0.1), extra=extra) as project:
        beat = project.beat()
        beat.wait_for("the exception is lost")
        assert beat.wait() == 0
        assert stopped(beat) == 1
        assert mark_file(project)["status"]["state"] == "stopped"


def test_further_signals_do_not_disturb_a_stop(tmp_path: Path, redis_url: str) -> None:
    """The stop waits for a run that is just being sent; signals arrive every few milliseconds until it is over."""
    extra = """
    import threading
    from celery.beat import BeatLazyFunc

    def hang():
        print("the lane hangs", flush=True)
        threading.Event().wait(60)

    app.conf.beat_schedule = {"hangs": {"task": "proj.note", "schedule": 1.0, "args": (BeatLazyFunc(hang),)}}
    """
    with Project(tmp_path, redis_conf(redis_url), extra=extra) as project:
        beat = project.beat()
        beat.wait_for("the lane hangs")
        until_s = time.monotonic() + WAIT_S
        while beat.running and time.monotonic() < until_s:
            for number in (signal.SIGTERM, signal.SIGINT):
                beat.send(number)
            pause(0.005, "the interval of the signals")
        assert beat.wait() == 0
        assert stopped(beat) == 1
        assert "Traceback" not in beat.output
        row = mark_file(project)
        assert row["status"]["state"] == "stopped"
        assert row["marks"]["broker"]["mark_ms"] > 0


def test_a_group_that_is_signalled_again_and_again_ends_its_embedded_beat_in_good_order(
    tmp_path: Path, redis_url: str
) -> None:
    """As ``timeout`` does, which signals its child and then the group; the worker signals its embedded beat as well."""
    with Project(tmp_path, redis_conf(redis_url, beat_schedule=EVERY_SECOND)) as project:
        worker = project.celery("worker", "-c", "1", "-l", "info", "-B", "--scheduler", "wheelbeat")
        project.wait_for_runs(lambda runs: len(runs) >= 2, "two runs")
        for _ in range(5):
            os.killpg(worker.pid, signal.SIGTERM)
            pause(0.01, "the interval of the signals")
        worker.wait()
        assert stopped(worker) == 1
        assert mark_file(project)["status"]["state"] == "stopped"


def test_a_signal_that_the_app_handles_for_longer_than_a_wait_does_not_stop_the_wheel(
    tmp_path: Path, redis_url: str
) -> None:
    extra = """
    import os, signal, time

    def handle(*_):
        time.sleep(1.5)
        print("handled", flush=True)

    signal.signal(signal.SIGUSR1, handle)
    """
    with Project(tmp_path, redis_conf(redis_url, beat_schedule=EVERY_SECOND), extra=extra) as project:
        beat = project.beat()
        seen = beat.wait_for("Sending due task tick")
        for _ in range(3):
            pause(0.3, "the outcome of the run is collected, so nothing but the next tick ends the wait")
            beat.send(signal.SIGUSR1)
            seen = beat.wait_for("handled", after=seen)
            for _ in range(2):
                seen = beat.wait_for("Sending due task tick", after=seen)
        assert beat.stop() == 0


class Plan(NamedTuple):
    """When a beat is signalled."""

    instant_s: float
    """After its line "beat: Starting..."."""
    again_s: float | None
    """A second signal so much later."""


class End(NamedTuple):
    """What became of it."""

    took_s: float
    code: int | None
    """None: it had to be killed."""
    complaint: str


ENDS_WITHIN_S = 5.0
HANGS_S = 30.0
"""A beat that still runs then is made to show the stacks of its threads, and killed."""


def plans(seed: int, count: int) -> list[Plan]:
    """Draw instants: half of them in the first 0.6 s, while threads start and monitors are loaded."""
    draw = random.Random(seed)
    return [
        Plan(draw.uniform(0, 0.6) if draw.random() < 0.5 else draw.uniform(0.6, 4), draw.choice([None, draw.random()]))
        for _ in range(count)
    ]


def ended(project: Project, plan: Plan) -> End:
    """Start a beat and end it as planned."""
    beat = project.beat(env={"PYTHONFAULTHANDLER": "1"})
    try:
        beat.wait_for("beat: Starting...", timeout_s=4 * WAIT_S)
        pause(plan.instant_s, "the instant of the signal")
        turned = any("jobs loaded" in line for line in beat.lines)
        begun_s = time.monotonic()
        beat.send(signal.SIGTERM)
        again = threading.Timer(plan.again_s or 0.0, beat.send, [signal.SIGTERM])
        if plan.again_s is not None:
            again.start()
        while beat.running and time.monotonic() - begun_s < HANGS_S:
            pause(0.005, "how exactly the end is timed")
        took_s = time.monotonic() - begun_s
        again.cancel()
        if beat.running:
            beat.send(signal.SIGABRT)
            beat.wait()
            return End(took_s, None, f"{plan} hangs:\n{beat.output}")
        code = beat.wait()
        # one that came before `beat_init` leaves a second one the default action, once Python ends
        codes, stops = ((0,), (1,)) if turned else ((0, -signal.SIGTERM), (0, 1))
        good = code in codes and stopped(beat) in stops
        return End(took_s, code, "" if good else f"{plan} ended with {code}:\n{beat.output}")
    finally:
        beat.close()
        project.processes.remove(beat)


@pytest.fixture
def project_of_hundreds(tmp_path: Path) -> Iterator[Project]:
    with (
        PrivatePostgres() as postgres,
        PrivateRedis() as broker,
        DjangoProject(tmp_path, redis_conf(broker.url), database=database_of(postgres.url)) as project,
    ):
        project.django(
            """
            Monitor.objects.bulk_create(
                Monitor(name=f"m {n}", task="proj.note", interval_ms=1000 * (1 + n % 10)) for n in range(300)
            )
            """
        )
        yield project


def pythons() -> Sequence[str]:
    """Interpreters whose environments have what a beat needs: this one, and those that ``WHEELBEAT_PYTHONS`` names."""
    return [sys.executable, *filter(None, os.environ.get("WHEELBEAT_PYTHONS", "").split(os.pathsep))]


@pytest.mark.parametrize(
    ("python", "starts", "within_s"),
    [
        pytest.param(sys.executable, 6, HANGS_S, id="short"),
        *(
            pytest.param(
                python,
                int(os.environ.get("WHEELBEAT_SIGNAL_STARTS", "2000")) // len(pythons()),
                ENDS_WITHIN_S,
                id=python,
                marks=[pytest.mark.soak, pytest.mark.timeout(6 * 3600)],
            )
            for python in pythons()
        ),
    ],
)
def test_a_sigterm_at_any_instant_ends_a_beat(
    project_of_hundreds: Project, capsys: pytest.CaptureFixture[str], python: str, starts: int, within_s: float
) -> None:
    """Three at a time, on two cores and under load: most signals interrupt something."""
    project = project_of_hundreds
    project.python = python
    seed = random.SystemRandom().getrandbits(32)
    with ThreadPoolExecutor(3) as threads:
        ends = list(threads.map(lambda plan: ended(project, plan), plans(seed, starts)))
    took_s = sorted(end.took_s for end in ends)
    hangs = sum(end.code is None for end in ends)
    p50_s, p99_s = took_s[len(took_s) // 2], took_s[len(took_s) * 99 // 100]
    figures = f"{starts} starts, seed {seed}, {hangs} hangs, ended after {p50_s:.2f}, {p99_s:.2f}, {took_s[-1]:.2f} s"
    with capsys.disabled():
        sys.stdout.write(f"\n{python}: {figures} (median, p99, longest)\n")
    assert [end.complaint for end in ends if end.complaint] == []
    assert took_s[-1] <= within_s
