"""A Celery app whose tasks keep a journal of every execution, and copies of runs published straight to its broker."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from celery import Celery

from support.processes import ROOT, Process, Project

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

DEADLINE_S = 120.0

PATIENT = """
    from celery_wheelbeat.worker.stores import drivers, postgres, redis

    # Every copy runs while a store does not answer within a second or two, as it may on a busy machine.
    redis.TIMEOUT_S, drivers.TIMEOUT_S, postgres.TIMEOUT_S, postgres.ANSWER_S = 30, 30, 30, 31
    postgres.SWIFT = postgres.SWIFT.replace(f"={postgres.STATEMENT_TIMEOUT_MS}", "=30000")
"""

TASKS = """
    from celery import chord
    from celery.exceptions import Reject
    from celery.signals import task_postrun, task_prerun, task_success
    {install}

    def journal(event, request, **more):
        line = {{"event": event, "id": request.id, "pid": os.getpid(), "at_ms": time.time() * 1000, **more}}
        with open({journal!r}, "a") as out:
            out.write(json.dumps(line) + "\\n")

    def starts(task_id):
        with open({journal!r}) as lines:
            return sum(json.loads(line)["id"] == task_id and '"start"' in line for line in lines)

    def hold(length):
        if not isinstance(length, str):
            time.sleep(length)
        else:
            while not os.path.exists(length):
                time.sleep(0.02)

    @app.task(bind=True)
    def record(self, length=0.0, value="first"):
        journal("start", self.request, retries=self.request.retries, fence=self.request.get("wheelbeat_fence"),
            nonce=self.request.get("wheelbeat_nonce"), redelivered=bool(self.request.delivery_info["redelivered"]))
        hold(length)
        journal("done", self.request)
        return value

    late = app.task(bind=True, name="proj.late", acks_late=True)(record.run.__func__)
    lost = app.task(bind=True, name="proj.lost", acks_late=True, reject_on_worker_lost=True)(record.run.__func__)
    limited = app.task(bind=True, name="proj.limited", rate_limit="20/s")(record.run.__func__)
    closed = app.task(bind=True, name="proj.closed", acks_late=True, wheelbeat={{"outage": "closed"}})(
        record.run.__func__)
    alone = app.task(bind=True, name="proj.alone", acks_late=True,
        wheelbeat={{"exclusive": True, "lease_s": 3, "wait_s": 0.5}})(record.run.__func__)
    short = app.task(bind=True, name="proj.short", wheelbeat={{"lease_s": 4, "wait_s": 0.3}})(record.run.__func__)
    kept = app.task(bind=True, name="proj.kept", wheelbeat={{"lease_s": 3600, "wait_s": 0.3}})(record.run.__func__)
    short_late = app.task(bind=True, name="proj.short_late", acks_late=True,
        wheelbeat={{"lease_s": 2, "wait_s": 0.3}})(record.run.__func__)
    single = app.task(bind=True, name="proj.single", wheelbeat={{"overlap": "skip"}})(record.run.__func__)
    by_content = app.task(bind=True, name="proj.by_content", wheelbeat={{"key": "content"}})(record.run.__func__)
    fresh = app.task(bind=True, name="proj.fresh", wheelbeat={{"stale": "drop"}})(record.run.__func__)

    @app.task(bind=True, max_retries=3)
    def retrying(self):
        journal("start", self.request, retries=self.request.retries)
        if self.request.retries < 2:
            raise self.retry(countdown=0.1)
        journal("done", self.request)

    @app.task(bind=True, autoretry_for=(ValueError,), retry_kwargs={{"max_retries": 2, "countdown": 0}})
    def autoretrying(self):
        journal("start", self.request, retries=self.request.retries)
        if self.request.retries < 1:
            raise ValueError
        journal("done", self.request)

    @app.task(bind=True, acks_late=True)
    def rejecting(self):
        journal("start", self.request)
        if starts(self.request.id) < 3:
            raise Reject("again", requeue=True)
        journal("done", self.request)

    @app.task(bind=True)
    def replacing(self):
        journal("start", self.request)
        raise self.replace(child.si())

    @app.task(bind=True)
    def child(self):
        journal("child", self.request, nesting=self.request.replaced_task_nesting)
        return "child"

    @app.task(bind=True)
    def chording(self):
        journal("start", self.request)
        chord([add.s(1, 1), add.s(2, 2)])(total.s(self.request.id))

    @app.task
    def add(a, b):
        return a + b

    @app.task(bind=True)
    def total(self, sums, parent):
        journal("total", self.request, parent=parent, total=sum(sums))

    @app.task(bind=True)
    def failing(self):
        journal("start", self.request)
        raise RuntimeError("as it should")

    if {signals!r}:
        @task_prerun.connect
        def prerun(task, task_id, **_):
            journal("prerun", task.request)

        @task_success.connect
        def succeeded(sender, **_):
            journal("success", sender.request)
"""


class Line(NamedTuple):
    """One line of the journal."""

    event: str
    id: str
    pid: int
    at_ms: float
    more: Mapping[str, Any]


class ClaimProject(Project):
    """``proj`` with ``celery_wheelbeat.worker`` installed (or not), its journal, and copies for its queue."""

    def __init__(
        self,
        folder: Path,
        conf: Mapping[str, Any],
        *,
        installed: bool = True,
        signals: bool = False,
        extra: str = "",
        before: str = "",
        python: str = sys.executable,
    ) -> None:
        self.journal_file = folder / "journal.jsonl"
        queue = f"claims-{uuid4().hex[:8]}"
        self.conf = {
            "task_default_queue": queue,
            "worker_prefetch_multiplier": 4,
            "broker_connection_retry_on_startup": True,
            "worker_hijack_root_logger": True,
            "worker_detect_quorum_queues": False,
            "worker_enable_remote_control": False,
            **conf,
        }
        install = "from celery_wheelbeat.worker import install; install(app)" if installed else ""
        tasks = TASKS.format(install=install, journal=str(self.journal_file), signals=signals)
        super().__init__(folder, self.conf, extra=PATIENT + tasks + extra, python=python)
        if before:
            module = folder / "proj.py"
            module.write_text(before + module.read_text())
        self.journal_file.touch()
        self.app = Celery("proj", set_as_current=False)
        self.app.conf.update(self.conf)
        if self.conf.get("result_backend") == "django-db":
            self.app.conf.result_backend = None  # this process only publishes, and has no Django

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__(*exc_info)
        self.app.close()

    def pool_worker(self, *arguments: str, pool: str = "prefork", concurrency: int = 2) -> Process:
        """Start a worker with a pool and wait until it is ready."""
        name = f"w{len(self.processes)}-{uuid4().hex[:6]}@localhost"
        options = ["-P", pool, "-c", str(concurrency), "-l", "info", "-n", name, "--without-gossip", "--without-mingle"]
        worker = self.celery("worker", *options, *arguments)
        worker.wait_for(" ready.", timeout_s=DEADLINE_S)
        return worker

    def publish(
        self,
        task: str,
        run_id: str,
        *,
        fire_ms: int | None = None,
        headers: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> str:
        """Publish one message of a run with a nonce of its own; return the nonce."""
        given = dict(headers or {})
        nonce = given.setdefault("wheelbeat_nonce", uuid4().hex)
        given.setdefault("wheelbeat_fire_ms", now_ms() if fire_ms is None else fire_ms)
        args, kwargs = options.pop("args", ()), options.pop("kwargs", {})
        self.app.send_task(
            f"proj.{task}", args, kwargs, task_id=run_id, headers=given, retry=False, ignore_result=False, **options
        )
        return str(nonce)

    def publish_copies(self, task: str, count: int, copies: int, **options: Any) -> list[str]:
        """Publish ``copies`` messages of each of ``count`` runs in random order; return the run ids."""
        ids = [str(uuid4()) for _ in range(count)]
        fire_ms = now_ms()
        messages = ids * copies
        random.Random(7).shuffle(messages)
        for run_id in messages:
            self.publish(task, run_id, fire_ms=fire_ms, **options)
        return ids

    def gate(self) -> str:
        """Name a gate: a run whose only argument it is goes on until somebody opens it."""
        return f"gate-{uuid4().hex[:8]}"

    def open(self, gate: str) -> None:
        """Let the runs behind a gate end."""
        (self.folder / gate).touch()

    def lines(self, event: str | None = None) -> list[Line]:
        """Return the journal, or its lines of one event."""
        found = []
        for text in self.journal_file.read_text().split("\n")[:-1]:  # the last line may be half written
            fields = json.loads(text)
            line = Line(fields.pop("event"), fields.pop("id"), fields.pop("pid"), fields.pop("at_ms"), fields)
            if event is None or line.event == event:
                found.append(line)
        return found

    def count(self, event: str) -> Counter[str]:
        """Return how often each run id has ``event`` in the journal."""
        return Counter(line.id for line in self.lines(event))

    def logged(self, text: str) -> int:
        """Return how many lines of all workers' logs contain ``text``."""
        return sum(text in line for process in self.processes for line in list(process.lines))

    def until(
        self, condition: Callable[[], bool], what: str, timeout_s: float = DEADLINE_S, every_s: float = 0.05
    ) -> None:
        """Ask for ``condition`` every ``every_s``; on time-out fail with the journal's summary and all logs."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n\n".join(f"$ {' '.join(p.command[3:])}\n" + "\n".join(p.lines[-60:]) for p in self.processes)
                events = Counter(line.event for line in self.lines())
                raise AssertionError(f"{what} did not happen within {timeout_s:g} s; journal: {dict(events)}\n{logs}")
            time.sleep(every_s)

    def until_settled(self, messages: int, timeout_s: float = DEADLINE_S) -> None:
        """Wait until ``messages`` messages have either run to their end or been dropped."""
        self.until(
            lambda: len(self.lines("done")) + self.logged("dropped (") >= messages,
            f"the end of all {messages} messages",
            timeout_s,
        )


DJANGO_SITE = """
from support.site.settings import *
from support.site.settings import database_of
DATABASES = {{"default": database_of({url!r})}}
INSTALLED_APPS = [*INSTALLED_APPS, "django_celery_results"]
"""


def django_project(folder: Path, database_url: str, **conf: Any) -> ClaimProject:
    """Make ``proj`` of a Django site that keeps results, and so claims, in its database; nothing else installs them."""
    (folder / "claims_site.py").write_text(DJANGO_SITE.format(url=database_url))
    before = "import os\nos.environ['DJANGO_SETTINGS_MODULE'] = 'claims_site'\n"
    project = ClaimProject(folder, {**conf, "result_backend": "django-db"}, installed=False, before=before)
    project.env["PYTHONPATH"] += os.pathsep + str(ROOT / "tests")
    project.env["DJANGO_SETTINGS_MODULE"] = "claims_site"
    project.python_code(
        """
        import django
        django.setup()
        from django.core.management import call_command
        call_command("migrate", verbosity=0)
        """
    )
    return project


def now_ms() -> int:
    """The present, in ms."""
    return round(time.time() * 1000)
