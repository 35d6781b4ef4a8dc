"""Real ``celery beat`` processes for benchmarks, and consumers of their messages.

Keeping every message would need gigabytes per minute, and reading them in Python a whole core. Messages of wheelbeat
contain their fire time, so a script inside Redis counts them by second and drops them. Those of other schedulers, a
hundredth as many, are read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import redis

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
    wheelbeat_envelope_bytes=case["envelope_bytes"],
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
QUEUE = "celery"
ENVELOPE_BYTES = 4 << 30
"""Setting of wheelbeat: memory for cached parts of messages."""
TAKE = 20_000
REST_S = 0.01
STRIDE = 100
"""One in STRIDE messages is inspected; if two neighbouring samples have the same second, so do all between."""
COUNT_AND_DROP = """
local taken = math.min(redis.call('LLEN', KEYS[1]), tonumber(ARGV[1]))
local stride = tonumber(ARGV[2])
local function second(at)  -- the oldest message is the last one
    local message = redis.call('LINDEX', KEYS[1], -at)
    local fire_ms = string.match(message, '"wheelbeat_fire_ms": ?(%d+)')
    return math.floor(tonumber(fire_ms or 0) / 1000)
end
if taken == 0 then return {} end
local found, from, this, at = {}, 1, second(1), 1
while at < taken do
    local to = math.min(at + stride, taken)
    local last = second(to)
    if last ~= this then  -- where does it change?
        local low, high = at, to
        while high - low > 1 do
            local middle = math.floor((low + high) / 2)
            if second(middle) == this then low = middle else high = middle end
        end
        found[#found + 1] = this
        found[#found + 1] = low - from + 1
        from, this = high, last
    end
    at = to
end
found[#found + 1] = this
found[#found + 1] = taken - from + 1
redis.call('LTRIM', KEYS[1], 0, -taken - 1)
return found
"""


class Seen(NamedTuple):
    """``count`` messages of one fire second, taken off the queue at the same instant."""

    fire_s: int
    count: int
    late_s: float


class Counting(threading.Thread):
    """Takes messages of wheelbeat off the queue, by fire second."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self.by_second: Counter[int] = Counter()
        self.seen: list[Seen] = []
        self.first_s: float | None = None
        self.ended = False
        self._script = redis.Redis.from_url(url).register_script(COUNT_AND_DROP)

    def run(self) -> None:
        while not self.ended:
            found = self._script(keys=[QUEUE], args=[TAKE, STRIDE])
            now_s = time.time()
            if not found:
                time.sleep(REST_S)
                continue
            self.first_s = self.first_s or time.monotonic()
            for fire_s, count in zip(found[::2], found[1::2], strict=True):
                self.count += count
                self.by_second[fire_s] += count
                self.seen.append(Seen(fire_s, count, now_s - fire_s))

    def late_since(self, index: int) -> list[tuple[float, int]]:
        """Return (lateness, number) of ``seen`` from position ``index`` on, ascending."""
        return sorted((one.late_s, one.count) for one in self.seen[index:])


class Reading(threading.Thread):
    """Takes messages off the queue and records their arrival times per task."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self.arrivals: dict[int, list[float]] = {}
        self.first_s: float | None = None
        self.ended = False
        self._client = redis.Redis.from_url(url)

    def run(self) -> None:
        while not self.ended:
            messages = self._client.rpop(QUEUE, 5_000)
            now_s = time.monotonic()
            if not messages:
                time.sleep(REST_S)
                continue
            self.first_s = self.first_s or now_s
            self.count += len(messages)
            for message in messages:
                number = int(json.loads(message)["headers"]["argsrepr"].strip("[](),"))
                self.arrivals.setdefault(number, []).append(now_s)


def weighted(late: list[tuple[float, int]], share: float) -> float:
    """Return the quantile ``share`` of lateness; ``late`` is ascending (lateness, runs)."""
    wanted, passed = share * sum(count for _, count in late), 0
    for late_s, count in late:
        passed += count
        if passed >= wanted:
            return late_s
    return late[-1][0] if late else 0.0


def environment(folder: Path, case: Mapping[str, Any]) -> dict[str, str]:
    """Write app and settings into ``folder``; return the environment for processes that use them."""
    (folder / "bench_app.py").write_text(APP)
    (folder / "bench_settings.py").write_text(SETTINGS)
    path = os.pathsep.join(str(Path(__file__).parents[1] / part) for part in (".", "django_app"))
    full = {"envelope_bytes": ENVELOPE_BYTES, "entries": False, "django_app": "django_wheelbeat", **case}
    return {**os.environ, "BENCH_CASE": json.dumps(full), "PYTHONPATH": path}


@contextmanager
def running_beat(folder: Path, env: Mapping[str, str], scheduler: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``celery beat`` with the app in ``folder``; it logs to ``beat.log`` there."""
    command = [sys.executable, "-m", "celery", "-A", "bench_app", "beat", "-S", scheduler, "-l", "WARNING"]
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


def commands_of(client: redis.Redis) -> Counter[str]:
    """Return the number of calls of each Redis command so far, by name."""
    stats = client.info("commandstats")
    return Counter({name.removeprefix("cmdstat_"): int(found["calls"]) for name, found in stats.items()})


def redis_cpu_s(client: redis.Redis) -> float:
    """Return the server's CPU time so far, in seconds."""
    used = client.info("cpu")
    return float(used["used_cpu_sys"]) + float(used["used_cpu_user"])
