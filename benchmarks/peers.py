"""Celery's own beat, django-celery-beat and redbeat beside wheelbeat: ``python benchmarks/peers.py [--full]``.

Real ``celery beat`` processes, one after the other, on one private Redis and one private PostgreSQL. What a run costs a
peer grows with the number of tasks, so the rate is measured with as many tasks as might keep a grid of one minute
(N / 60 runs a second), all of them due faster than they can be sent; what was measured gives the next number, and the
last two give the result, interpolated. A run with few tasks shows
start, drift, lateness and what idling costs. ``--full`` takes more rounds, and lets wheelbeat keep nine tenths of its
number on a real grid of one minute.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import psycopg
import redis
from report import Report, cpu_s, resident_bytes
from services import PrivatePostgres, PrivateRedis

if TYPE_CHECKING:
    from collections.abc import Iterator

APP = """
import os, json, django
from celery import Celery
os.environ["DJANGO_SETTINGS_MODULE"] = "bench_settings"
django.setup()
case = json.loads(os.environ["BENCH_CASE"])
app = Celery("bench", broker=case["redis"])
app.conf.update(
    broker_connection_retry_on_startup=True, task_ignore_result=True, redbeat_redis_url=case["redis"],
    redbeat_lock_timeout=60, beat_max_loop_interval=1 if case["scheduler"] != "wheelbeat" else 0,
    wheelbeat_envelope_bytes=2 << 30,
)
if case["entries"]:
    app.conf.beat_schedule = {
        f"t{n}": {"task": "bench.check", "schedule": float(case["interval_s"]), "args": [n]}
        for n in range(case["tasks"])
    }
"""
SETTINGS = """
import os, json
case = json.loads(os.environ["BENCH_CASE"])
SECRET_KEY = "only for this benchmark"
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "HOST": "127.0.0.1", "PORT": case["port"],
                         "USER": "postgres", "NAME": case["database"]}}
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.admin",
                  "django.contrib.sessions", "django.contrib.messages", case["django_app"]]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
DJANGO_CELERY_BEAT_TZ_AWARE = True
"""
FILL = {
    "django_celery_beat": """
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django_celery_beat.models import IntervalSchedule, PeriodicTask, PeriodicTasks
every, _ = IntervalSchedule.objects.get_or_create(every=case["interval_s"], period="seconds")
PeriodicTask.objects.bulk_create([
    PeriodicTask(name=f"t{n}", task="bench.check", interval=every, args=json.dumps([n])) for n in range(case["tasks"])
], batch_size=5000)
PeriodicTasks.update_changed()
""",
    "django_wheelbeat": """
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django.db import connection
with connection.cursor() as cursor:
    cursor.execute(
        "INSERT INTO wheelbeat_monitor (name, task, interval_ms, args)"
        " SELECT 't' || n, 'bench.check', %s, '[' || n || ']' FROM generate_series(0, %s) n",
        (case["interval_s"] * 1000, case["tasks"] - 1),
    )
""",
    "redbeat": """
from celery.schedules import schedule
from redbeat import RedBeatSchedulerEntry
for n in range(case["tasks"]):
    RedBeatSchedulerEntry(f"t{n}", "bench.check", schedule(case["interval_s"]), args=[n], app=app).save()
""",
}
QUEUE = "celery"
SAMPLES = 50


class Contender(NamedTuple):
    """One scheduler, and the number of tasks that it is tried with first."""

    name: str
    scheduler: str
    fill: str | None
    tasks: int
    interval_s: int
    """Short enough that the tasks are more than it can send."""


class Tried(NamedTuple):
    """So many tasks were run, and at the rate that was seen so many would keep the grid."""

    tasks: int
    can_keep: float


OURS = "wheelbeat"
CONTENDERS = (
    Contender("PersistentScheduler (Celery)", "celery.beat:PersistentScheduler", None, 2_000, 1),
    Contender("django-celery-beat", "django_celery_beat.schedulers:DatabaseScheduler", "django_celery_beat", 2_000, 1),
    Contender("redbeat", "redbeat.RedBeatScheduler", "redbeat", 2_000, 1),
    Contender(OURS, "wheelbeat", "django_wheelbeat", 200_000, 2),
)
GRID_S = 60
FEW, FEW_S = 200, 2
"""Tasks of the run that shows start and drift, and their interval."""
BURST_S = 2.0
"""What is sent at first does not count: everything is due at once then."""
WARM_S = 300.0
LOOK_EVERY = 500
"""Of the messages of wheelbeat, which name their fire time, one in so many is looked at."""


class Drain(threading.Thread):
    """Takes messages off the queue as they come, and notes when those of a few tasks arrived."""

    def __init__(self, url: str, tasks: int) -> None:
        super().__init__(daemon=True)
        self.client = redis.Redis.from_url(url)
        self.sampled = set(range(0, tasks, max(1, tasks // SAMPLES)))
        self.count = 0
        self.arrivals: dict[int, list[float]] = {}
        self.first_s: float | None = None
        self.ended = False
        self.look = tasks <= FEW
        self.lateness_s: list[float] = []

    def run(self) -> None:
        while not self.ended:
            messages = self.client.lpop(QUEUE, 20_000)
            now_s = time.monotonic()
            if not messages:
                time.sleep(0.01)
                continue
            self.first_s = self.first_s or now_s
            self.count += len(messages)
            for message in messages[::LOOK_EVERY]:
                fire_ms = json.loads(message)["headers"].get("wheelbeat_fire_ms")
                if fire_ms is not None:
                    self.lateness_s.append(time.time() - fire_ms / 1000)
            for message in messages if self.look else ():
                number = int(json.loads(message)["headers"]["argsrepr"].strip("[](),"))
                if number in self.sampled:
                    self.arrivals.setdefault(number, []).append(now_s)


class Case(NamedTuple):
    """One beat with one number of tasks."""

    contender: Contender
    tasks: int
    interval_s: int


@contextmanager
def beat(case: Case, folder: Path, server: PrivatePostgres, broker: PrivateRedis) -> Iterator[subprocess.Popen[bytes]]:
    """Prepare the tasks and run the beat."""
    name = f"bench_{time.time_ns()}"
    app = case.contender.fill if (case.contender.fill or "").startswith("django_") else "django_wheelbeat"
    environment = {
        "scheduler": case.contender.scheduler, "tasks": case.tasks, "interval_s": case.interval_s,
        "entries": case.contender.fill is None, "redis": broker.url, "port": server.port, "database": name,
        "django_app": app,
    }  # fmt: skip
    path = os.pathsep.join(str(Path(__file__).parents[1] / part) for part in (".", "django_app"))
    env = {**os.environ, "BENCH_CASE": json.dumps(environment), "PYTHONPATH": path}
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    (folder / "bench_app.py").write_text(APP)
    (folder / "bench_settings.py").write_text(SETTINGS)
    if case.contender.fill:
        code = f"import json\nfrom bench_app import app, case\n{FILL[case.contender.fill]}"
        subprocess.run([sys.executable, "-c", code], cwd=folder, env=env, check=True)
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "bench_app",
        "beat",
        "-S",
        case.contender.scheduler,
        "-l",
        "WARNING",
    ]
    with (folder / "beat.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Servers(NamedTuple):
    """What the beats work with."""

    database: PrivatePostgres
    broker: PrivateRedis


def run(case: Case, server: PrivatePostgres, broker: PrivateRedis, measure_s: float) -> dict[str, Any]:
    """Run one beat; returns what was seen."""
    client = redis.Redis.from_url(broker.url)
    client.flushall()
    with tempfile.TemporaryDirectory() as folder, beat(case, Path(folder), server, broker) as process:
        begun = time.monotonic()
        drain = Drain(broker.url, case.tasks)
        drain.start()
        while drain.first_s is None:
            if time.monotonic() - begun > 300 or process.poll() is not None:
                raise SystemExit(f"{case}: nothing was sent\n{(Path(folder) / 'beat.log').read_text()[-3000:]}")
            time.sleep(0.05)
        time.sleep(BURST_S)
        while case.contender.name == OURS and drain.count < case.tasks and time.monotonic() - begun < WARM_S:
            time.sleep(0.05)  # the first message of each of its tasks takes several times as long as the others
        drain.lateness_s.clear()
        count, cpu, at = drain.count, cpu_s(process.pid), time.monotonic()
        queries = _transactions(server)
        time.sleep(measure_s)
        took_s = time.monotonic() - at
        drain.ended = True
        return {
            "startup_s": drain.first_s - begun,
            "per_s": (drain.count - count) / took_s,
            "cpu": (cpu_s(process.pid) - cpu) / took_s,
            "resident": resident_bytes(process.pid),
            "queries_per_s": (_transactions(server) - queries) / took_s,
            "drift_ms": _drift_ms(drain.arrivals, case.interval_s),
            "off_grid_ms": _off_grid_ms(drain.arrivals, case.interval_s),
            "lateness_s": sorted(drain.lateness_s),
        }


def _transactions(server: PrivatePostgres) -> int:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_clear_snapshot()")
        found = connection.execute(
            "SELECT sum(xact_commit) FROM pg_stat_database WHERE datname LIKE 'bench%'"
        ).fetchall()
    return int(found[0][0] or 0)


def _drift_ms(arrivals: dict[int, list[float]], interval_s: int) -> float | None:
    """Return how much later each run is than one interval after the one before, on average; None with too few runs."""
    drifts = [
        ((times[-1] - times[0]) / (len(times) - 1) - interval_s) * 1000 for times in arrivals.values() if len(times) > 2
    ]
    return sum(drifts) / len(drifts) if drifts else None


def _off_grid_ms(arrivals: dict[int, list[float]], interval_s: int) -> float | None:
    """Return how late the worst run of all came on the grid of its task's first run; None with too few runs."""
    late = [
        (at - times[0] - number * interval_s) * 1000
        for times in arrivals.values()
        if len(times) > 2
        for number, at in enumerate(times)
    ]
    return max(late, default=None)


def few(report: Report, contender: Contender, servers: Servers, measure_s: float) -> None:
    """Show start, drift and what idling costs."""
    name, with_few = contender.name, f"{FEW} tasks every {FEW_S} s"
    found = run(Case(contender, FEW, FEW_S), *servers, measure_s)
    report.add(f"{name}: start to first message", found["startup_s"], "s", note=with_few)
    if found["drift_ms"] is not None:
        report.add(f"{name}: drift of each run", found["drift_ms"], "ms", note=with_few)
        report.add(f"{name}: latest run, on the grid of its task's first", found["off_grid_ms"], "ms", note=with_few)
    report.add(f"{name}: CPU", found["cpu"] * 100, "% of a core", note=with_few)
    report.add(f"{name}: database transactions", found["queries_per_s"], "1/s", note=with_few)


def most_on_a_grid(report: Report, contender: Contender, servers: Servers, measure_s: float, rounds: int) -> float:
    """Return how many tasks keep the grid: the rate with N tasks says how many to try next."""
    tasks, tried = contender.tasks, list[Tried]()
    for _ in range(rounds):
        found = run(Case(contender, tasks, contender.interval_s), *servers, measure_s)
        can_keep = GRID_S * found["per_s"]
        each_us = found["cpu"] / max(1.0, found["per_s"]) * 1e6
        note = f"start {found['startup_s']:.1f} s, {found['resident'] / 1e6:.0f} MB, {each_us:,.0f} µs of CPU a run"
        report.add(f"{contender.name}, {tasks:,} tasks: sustained", found["per_s"], "runs/s", note=note)
        if contender.name == OURS:
            return can_keep  # what a run costs it does not grow with the number of tasks
        tried.append(Tried(tasks, can_keep))
        tasks = max(100, int(crossing(tried)))
    return crossing(tried)


def crossing(tried: list[Tried]) -> float:
    """Return the number of tasks of which just all keep the grid, between the nearest that do and that do not."""
    enough = max((one for one in tried if one.can_keep >= one.tasks), default=None)
    too_many = min((one for one in tried if one.can_keep < one.tasks), default=None)
    if enough is None or too_many is None or enough.tasks >= too_many.tasks:
        return tried[-1].can_keep
    above, below = math.log(enough.can_keep / enough.tasks), math.log(too_many.tasks / max(1.0, too_many.can_keep))
    share = above / (above + below)
    return float(enough.tasks * (too_many.tasks / enough.tasks) ** share)


def keep(report: Report, contender: Contender, servers: Servers, tasks: int) -> float:
    """Let ``tasks`` fire each minute, for two minutes; returns how many of them do."""
    found = run(Case(contender, tasks, GRID_S), *servers, 2 * GRID_S)
    kept, lateness = GRID_S * found["per_s"], found["lateness_s"]
    note = f"start {found['startup_s']:.1f} s, {found['resident'] / 1e6:.0f} MB, {found['cpu'] * 100:.0f} % of a core"
    what = f"{contender.name}, {tasks:,} tasks on a grid of {GRID_S} s"
    report.add(f"{what}: sent each minute", kept, "runs", note=note)
    if lateness:
        report.add(f"{what}: lateness in the queue, median", lateness[len(lateness) // 2] * 1000, "ms")
        report.add(f"{what}: lateness in the queue, p99", lateness[int(len(lateness) * 0.99)] * 1000, "ms")
    return min(tasks, kept)


def main() -> None:
    """Measure all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--only", help="part of a name; writes no results")
    given = parser.parse_args()
    measure_s, rounds = (15, 4) if given.full else (4, 2)
    report = Report("peers", full=given.full, wheelbeat_envelope_bytes=2 << 30)
    most: dict[str, float] = {}
    with PrivateRedis() as broker, PrivatePostgres() as server:
        for contender in CONTENDERS:
            if given.only and given.only not in contender.name:
                continue
            name, servers = contender.name, Servers(server, broker)
            few(report, contender, servers, 60 if given.full else 4 * FEW_S)
            most[name] = most_on_a_grid(report, contender, servers, measure_s, rounds)
            if name == OURS and given.full:
                most[name] = keep(report, contender, servers, int(most[name] * 0.9))
            report.add(f"{name}: tasks that keep a grid of {GRID_S} s", most[name], "tasks")
    peers = [count for name, count in most.items() if name != OURS]
    if peers and OURS in most:
        report.add("wheelbeat against the best peer", most[OURS] / max(peers), "×", note="target 50 ×")
    if not given.only:
        report.write()


if __name__ == "__main__":
    sys.exit(main())
