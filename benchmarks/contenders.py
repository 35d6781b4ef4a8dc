"""The schedulers that ``peers`` compares, each started with a given number of tasks."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import redis
from beats import Counting, Reading, environment, running_beat
from wheel_table import resize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services import PrivatePostgres, PrivateRedis

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
    "redbeat": """
from celery.schedules import schedule
from redbeat import RedBeatSchedulerEntry
import os
second = os.fork() == 0  # two processes write, it takes long enough
for n in range(second, case["tasks"], 2):
    RedBeatSchedulerEntry(f"t{n}", "bench.check", schedule(case["interval_s"]), args=[n], app=app).save()
if second:
    os._exit(0)
if os.wait()[1]:
    raise SystemExit("not all entries were written")
""",
    "django_wheelbeat": """
from django.core.management import call_command
call_command("migrate", verbosity=0)
""",
}


class Contender(NamedTuple):
    """One scheduler, and the number of tasks of its first try."""

    name: str
    scheduler: str
    fill: str | None
    tasks: int
    interval_s: int
    """Interval so short that more runs are due than it can send."""


OURS = "wheelbeat"
CONTENDERS = (
    Contender("PersistentScheduler (Celery)", "celery.beat:PersistentScheduler", None, 2_000, 1),
    Contender("django-celery-beat", "django_celery_beat.schedulers:DatabaseScheduler", "django_celery_beat", 2_000, 1),
    Contender("redbeat", "redbeat.RedBeatScheduler", "redbeat", 2_000, 1),
    Contender(OURS, "wheelbeat", "django_wheelbeat", 200_000, 2),
)
START_S = 300.0


class Servers(NamedTuple):
    """The servers that the beats use."""

    database: PrivatePostgres
    broker: PrivateRedis


class Case(NamedTuple):
    """One beat with one number of tasks."""

    contender: Contender
    tasks: int
    interval_s: int


class Run(NamedTuple):
    """A beat that has sent its first message, and the consumer of its messages."""

    pid: int
    reader: Any
    startup_s: float
    client: redis.Redis
    database: str


@contextmanager
def started(case: Case, servers: Servers, *, counting: bool, database: str = "") -> Iterator[Run]:
    """Create the tasks in a new database, or use those in ``database``, and run the beat."""
    server, broker = servers
    client = redis.Redis.from_url(broker.url)
    client.flushall()
    client.config_resetstat()
    name = database or new_database(server)
    with tempfile.TemporaryDirectory() as place:
        folder, fill = Path(place), case.contender.fill
        env = environment(
            folder,
            {
                "scheduler": case.contender.scheduler, "tasks": case.tasks, "interval_s": case.interval_s,
                "entries": fill is None, "redis": broker.url, "port": server.port,
                "database": name,
                "django_app": fill if (fill or "").startswith("django_") else "django_wheelbeat",
            },
        )  # fmt: skip
        if fill and not database:
            code = f"import json\nfrom bench_app import app, case\n{FILL[fill]}"
            subprocess.run([sys.executable, "-c", code], cwd=folder, env=env, check=True)
            if case.contender.name == OURS:
                resize(server.database_url(name), case.tasks, case.interval_s)
        reader = (Counting if counting else Reading)(broker.url)
        with running_beat(folder, env, case.contender.scheduler) as process:
            begun = time.monotonic()
            reader.start()
            while reader.first_s is None:
                if time.monotonic() - begun > START_S or process.poll() is not None:
                    raise SystemExit(f"{case}: nothing was sent\n{(folder / 'beat.log').read_text()[-3000:]}")
                time.sleep(0.05)
            try:
                yield Run(process.pid, reader, reader.first_s - begun, client, name)
            finally:
                reader.ended = True
                reader.join(10)


def new_database(server: PrivatePostgres) -> str:
    """Create an empty database; return its name."""
    name = f"bench_{time.time_ns()}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return name
