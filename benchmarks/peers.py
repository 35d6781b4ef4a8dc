"""Celery's own beat, django-celery-beat and redbeat beside wheelbeat: ``python benchmarks/peers.py [--full]``.

Real ``celery beat`` processes, one after the other, on one private Redis and one private PostgreSQL. What a run costs a
peer grows with the number of tasks, so each is run with more and more tasks, all of them due faster than it can send:
the rate at N tasks tells whether N keep a grid of one minute (N / 60 runs a second). A run with few tasks shows start,
drift and what idling costs.
"""

from __future__ import annotations

import argparse
import json
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
    """One scheduler, and the numbers of tasks that it is tried with."""

    name: str
    scheduler: str
    fill: str | None
    ladder: tuple[int, ...]
    interval_s: int
    """Short enough that every number of the ladder is more than it can send."""


LADDER = (1_000, 2_000, 4_000, 8_000, 16_000, 32_000)
CONTENDERS = (
    Contender("PersistentScheduler (Celery)", "celery.beat:PersistentScheduler", None, LADDER, 1),
    Contender("django-celery-beat", "django_celery_beat.schedulers:DatabaseScheduler", "django_celery_beat", LADDER, 1),
    Contender("redbeat", "redbeat.RedBeatScheduler", "redbeat", LADDER, 1),
    Contender("wheelbeat", "wheelbeat", "django_wheelbeat", (400_000,), 5),
)
GRID_S = 60


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
        self.look = tasks <= 2_000

    def run(self) -> None:
        while not self.ended:
            messages = self.client.lpop(QUEUE, 20_000)
            now_s = time.monotonic()
            if not messages:
                time.sleep(0.01)
                continue
            self.first_s = self.first_s or now_s
            self.count += len(messages)
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
        time.sleep(3)  # the first burst, in which everything is due at once
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


def climb(
    report: Report, contender: Contender, server: PrivatePostgres, broker: PrivateRedis, measure_s: float
) -> float:
    """Try more and more tasks; returns how many keep the grid, between the last that did and the first that did not."""
    most = 0.0
    for tasks in contender.ladder:
        found = run(Case(contender, tasks, contender.interval_s), server, broker, measure_s)
        can_keep = GRID_S * found["per_s"]
        what = f"{contender.name}, {tasks:,} tasks"
        each_us = found["cpu"] / max(1.0, found["per_s"]) * 1e6
        note = f"start {found['startup_s']:.1f} s, {found['resident'] / 1e6:.0f} MB, {each_us:,.0f} µs of CPU a run"
        report.add(f"{what}: sustained", found["per_s"], "runs/s", note=note)
        if can_keep < tasks:
            return max(most, can_keep)
        most = can_keep if tasks == contender.ladder[-1] else tasks
    return most


def main() -> None:
    """Measure all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--only", help="part of a name")
    given = parser.parse_args()
    heavy_s, light_s = (30, 120) if given.full else (8, 20)
    report = Report("peers", full=given.full)
    kept: dict[str, float] = {}
    with PrivateRedis() as broker, PrivatePostgres() as server:
        for contender in CONTENDERS:
            if given.only and given.only not in contender.name:
                continue
            name = contender.name
            light = run(Case(contender, 500, 5), server, broker, light_s)
            report.add(f"{name}: start to first message", light["startup_s"], "s", note="500 tasks")
            if light["drift_ms"] is not None:
                report.add(f"{name}: drift of each run", light["drift_ms"], "ms", note="500 tasks every 5 s")
            report.add(f"{name}: CPU with 500 tasks every 5 s", light["cpu"] * 100, "%")
            report.add(f"{name}: database transactions", light["queries_per_s"], "1/s", note="500 tasks every 5 s")
            kept[name] = climb(report, contender, server, broker, heavy_s)
            report.add(f"{name}: tasks that keep a 60 s grid", kept[name], "tasks")
    peers = [count for name, count in kept.items() if name != "wheelbeat"]
    if peers and "wheelbeat" in kept:
        report.add("wheelbeat against the best peer", kept["wheelbeat"] / max(peers), "×")
    report.write()


if __name__ == "__main__":
    sys.exit(main())
