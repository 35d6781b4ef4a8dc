"""The fast lanes without a beat: a sender on a real broker, envelopes of a small app, batches of runs."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from celery import Celery
from celery.beat import ScheduleEntry

from celery_wheelbeat.beat.scheduler import WheelScheduler
from celery_wheelbeat.dispatch.broker import open_connection
from celery_wheelbeat.dispatch.fast_lane.amqp_wire import AmqpWire
from celery_wheelbeat.dispatch.fast_lane.batches import Batch, Draft, FormVerdict, Load, Outcome, make
from celery_wheelbeat.dispatch.fast_lane.publisher import FastPublisher
from celery_wheelbeat.dispatch.fast_lane.redis_wire import RedisWire
from celery_wheelbeat.dispatch.messages.envelope import Answer, Envelope
from celery_wheelbeat.dispatch.messages.envelope_maker import Arguments, EnvelopeMaker
from celery_wheelbeat.dispatch.messages.part_cache import PartColumns
from celery_wheelbeat.dispatch.messages.patterns import Form, with_own
from celery_wheelbeat.dispatch.messages.run_ids import RunIds
from celery_wheelbeat.jobs.definitions import Route
from celery_wheelbeat.runtime.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


WAIT_S = 120.0
FIRE_MS = 1_764_000_000_000
RUN_IDS = RunIds("tests")


def make_app(url: str, **conf: Any) -> Celery:
    """Return an app with the task ``lanes.check`` (``x``, ``url``) and one without a signature check."""
    app = Celery("lanes", broker=url, set_as_current=False)
    app.conf.update(conf)

    @app.task(name="lanes.check", shared=False)
    def check(x: Any, url: str | None = None) -> None: ...

    @app.task(name="lanes.anything", typing=False, shared=False)
    def anything(*args: Any, **kwargs: Any) -> None: ...

    return app


def form_of(task: str, options: Mapping[str, Any], *headers: tuple[str, Any]) -> Form:
    """Return the form of ``task`` with ``options``."""
    return Form(Route(task, json.dumps(options)), headers)


def make_entry(app: Celery) -> Callable[[Form, str, Arguments], ScheduleEntry]:
    """Return what builds the entry of a form."""

    def build(form: Form, name: str, arguments: Arguments) -> ScheduleEntry:
        options = with_own(json.loads(form.route.options), arguments.own)
        args, kwargs = list(arguments.args), dict(arguments.kwargs)
        return ScheduleEntry(name=name, task=form.task, args=args, kwargs=kwargs, options=options, schedule=60, app=app)

    return build


def make_wire(
    app: Celery, *, kind: str, options: Mapping[str, Any] | None = None, heartbeat_s: float = 10
) -> RedisWire | AmqpWire:
    """Return a wire that is not connected; ``kind`` is ``redis`` or ``amqp``."""
    scheduler = WheelScheduler(app, lazy=True)

    def maker(recorder: Any) -> EnvelopeMaker:
        return EnvelopeMaker(scheduler, recorder, make_entry(app), options or {}, quiet=nullcontext)

    def producer(connection: Any) -> Any:
        return app.amqp.Producer(connection, auto_declare=False)

    def connection() -> Any:
        return open_connection(app)

    if kind == "redis":
        return RedisWire(connection, producer, maker, SystemClock(), namespace=lambda: "tests", destination="broker")
    return AmqpWire(connection, producer, maker, SystemClock(), heartbeat_s=heartbeat_s)


class Lane:
    """A running sender and what a scheduling thread would do with it."""

    def __init__(
        self,
        app: Celery,
        *,
        kind: str,
        window: int = 2,
        options: Mapping[str, Any] | None = None,
        heartbeat_s: float = 10,
    ) -> None:
        self.app = app
        self.wire = make_wire(app, kind=kind, options=options, heartbeat_s=heartbeat_s)
        self.sender = FastPublisher("test", self.wire, SystemClock(), lambda: None, window=window)
        self.outcomes: dict[int, Outcome] = {}
        self.verdicts: list[FormVerdict] = []
        self._token = 0
        self.sender.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.sender.close(5)

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
        """Poll the sender until ``condition`` holds."""
        deadline = time.monotonic() + timeout_s
        while True:
            for news in self.sender.poll():
                if isinstance(news, Outcome):
                    self.outcomes[news.token] = news
                else:
                    self.verdicts.append(news)
            if condition():
                return
            assert time.monotonic() < deadline, f"{what} did not happen within {timeout_s} s"
            time.sleep(0.002)

    def connected(self) -> Lane:
        """Wait for the connection."""
        self.wait(lambda: self.sender.capacity() > 0, "a connection")
        return self

    def ask(self, form: Form, *candidates: Arguments) -> Answer:
        """Have an envelope made."""
        before = len(self.verdicts)
        self.sender.ask(form, candidates or [Arguments([0], {})])
        self.wait(lambda: len(self.verdicts) > before, "a verdict")
        return self.verdicts[-1].answer

    def envelope(self, **options: Any) -> Envelope:
        """Return an envelope of ``lanes.check``."""
        found = self.ask(form_of("lanes.check", options), Arguments([0], {}), Arguments([1], {"url": "x"}))
        assert isinstance(found, Envelope), found
        return found

    def batch(self, envelope: Envelope, jobs: Sequence[int], fire_ms: int = FIRE_MS, **kwargs: Any) -> Batch:
        """Return a batch of one run for each of ``jobs``, whose number is the only argument."""
        self._token += 1
        pieces = [envelope.pieces(envelope.body.of([job], kwargs), f"job {job}") for job in jobs]
        ids = RUN_IDS.of_names(b"monitor:%d@%d" % (job, fire_ms) for job in jobs)
        load = Load(envelope, PartColumns.of(pieces), ids, np.full(len(jobs), fire_ms))
        draft = Draft()
        draft.add(make(load, datetime.now(UTC)), slice(0, len(jobs)), np.arange(len(jobs)))
        return draft.batch(self._token, self.sender.epoch)

    def send(self, *batches: Batch) -> list[Outcome]:
        """Send ``batches`` and return their outcomes."""
        for batch in batches:
            self.wait(lambda: self.sender.capacity() > 0, "room for a batch")
            self.sender.submit(batch)
        self.wait(lambda: all(batch.token in self.outcomes for batch in batches), "the outcome of every batch")
        return [self.outcomes[batch.token] for batch in batches]
