"""Makes envelopes: records two messages of a form, cuts the first, proves the cut with the second.

Runs in the thread and on the connection with which the fast lane publishes, because a message depends on both. The
result is an envelope, a refusal, or a reason; in doubt, a reason.
"""

from __future__ import annotations

import random
import time
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from kombu import serialization
from kombu.exceptions import EncodeError, SerializerNotInstalled

from celery_wheelbeat.dispatch import FailureKind, Run
from celery_wheelbeat.dispatch.failures import Diagnosis, diagnose
from celery_wheelbeat.dispatch.lane_rules import EXPIRES_NEXT
from celery_wheelbeat.dispatch.messages.attempt import Attempt
from celery_wheelbeat.dispatch.messages.envelope import Answer, Envelope, Refusal, SampleMessage, Stamps
from celery_wheelbeat.dispatch.messages.expiry import expected_now, has_all_digits
from celery_wheelbeat.dispatch.messages.hooks import configuration_reasons, entry_reasons, hooks
from celery_wheelbeat.dispatch.messages.invented import invented
from celery_wheelbeat.dispatch.messages.part_cache import PartColumns
from celery_wheelbeat.dispatch.messages.patterns import NOTHING, QUEUE, ROUTING_KEY, SHORT_TEXT_MAX, Own
from celery_wheelbeat.dispatch.messages.plain_queues import plain_queues
from celery_wheelbeat.dispatch.messages.recording import undeclared
from celery_wheelbeat.dispatch.messages.run_ids import rows_of
from celery_wheelbeat.dispatch.messages.subscriptions import unsubscribed
from celery_wheelbeat.dispatch.messages.task_body import TaskBody
from celery_wheelbeat.dispatch.messages.template import FIRST_FIRE_MS, LAST_FIRE_MS, Uncut
from celery_wheelbeat.dispatch.messages.tracing import names_of, only_observers, traces_of
from celery_wheelbeat.jobs.headers import JOB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery_wheelbeat.dispatch.messages.patterns import Form
    from celery_wheelbeat.dispatch.messages.recording import Recording


_serialize: Any = serialization.dumps
_OF_ROUTE = (FailureKind.POISON, FailureKind.UNROUTABLE)
"""Failures that apply to every message of a form."""
MOVED = "the bindings of its exchange have changed"
"""Result of a comparison: the envelope has to be made again, and is not to blame."""
_TRIES = 4
"""Most recordings for one proof: a time that ends in zeros is written with fewer digits and is of no use."""


class Arguments(NamedTuple):
    """Arguments of one job, for a recording."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    own: Own = NOTHING


class Recorder(Protocol):
    """A connection on which messages can be recorded."""

    producer: Any
    """kombu ``Producer`` on the recorded channel."""
    is_asked: bool
    """Whether ``try_out`` asks the broker, which may decide by routing key."""

    def record(self, publish: Callable[[], Any], *, anywhere: bool = False) -> Recording:
        """Call ``publish`` and return its message; see ``recording``."""

    def envelope(self, recording: Recording, sample: SampleMessage, body: TaskBody) -> Envelope:
        """Cut an envelope; raises ``Uncut``."""

    def try_out(self, recording: Recording) -> str:
        """Return why the broker refuses the message; empty if it accepts it or cannot be asked."""


class EnvelopeMaker:
    """Makes and compares envelopes. ``make_entry(form, name, arguments)`` builds a ``ScheduleEntry``."""

    def __init__(
        self,
        scheduler: Any,
        recorder: Recorder,
        make_entry: Callable[[Form, str, Arguments], Any],
        options: Mapping[str, Any],
        *,
        quiet: Callable[[], Any],
        bypass_hooks: bool = False,
    ) -> None:
        """``options``: defaults of message options, as the celery lane adds them; the user's options win.

        ``quiet``: context in which this thread logs no line per run.
        ``bypass_hooks``: ignore signal receivers, patches and overrides; see ``wheelbeat_dispatch=fast``.
        """
        self._quiet = quiet
        self._bypass_hooks = bypass_hooks
        self._scheduler = scheduler
        self._app = scheduler.app
        self._recorder = recorder
        self._make_entry = make_entry
        self._options = options
        self._is_plain = plain_queues(self._app)
        self._attempt: Attempt | None = None
        """The last attempt."""

    def make(self, form: Form, candidates: Sequence[Arguments]) -> Answer:
        """Return the envelope of ``form``, or why it has none. ``candidates``: arguments of some of its jobs.

        Raises only if the connection is lost, or if its server accepts nothing at the moment.
        """
        try:
            fitting = [candidate for candidate in candidates if self._fits(form, candidate)]
            if not fitting:
                return "its arguments do not fit the signature of the task"
            found = hooks(self._app, self._scheduler, form.task)
            reasons = [] if self._bypass_hooks or only_observers(found) else [hook.what for hook in found]
            reasons += configuration_reasons(self._app)
            if form.route.expires_next:
                reasons.append(EXPIRES_NEXT)
            reasons += entry_reasons(self._app, self._make_entry(form, "", fitting[0]))
            if reasons:
                return "; ".join(reasons)
            return self._try(form, fitting[0], fitting[-1], names_of(found))
        except Exception as error:
            diagnosis, of_publish = self._diagnosis_unless_lost(error)
            reason = f"{form.task} cannot be rendered: {diagnosis.reason}"
            is_routes = diagnosis.kind in _OF_ROUTE or (diagnosis.kind is FailureKind.ERROR and of_publish)
            return Refusal(reason, error) if is_routes else reason

    def differs(self, envelope: Envelope, form: Form, arguments: Arguments) -> str:
        """Compare ``envelope`` with a message that Celery makes now; returns the difference, empty if none."""
        try:
            if envelope.places is not None and envelope.places.are_outdated():
                return MOVED
            recording, sample = self._record(form, arguments)
            key = envelope.key_of(sample.own)
            if recording.key != key:
                return f"it goes to {recording.key!r} now, expected {key!r}"
            return "" if rendered(envelope, recording, sample) == recording.wire else "Celery renders other bytes now"
        except Exception as error:
            return self._diagnosis_unless_lost(error)[0].reason

    def declare(self, queue: str) -> str:
        """Let Celery declare a plain queue, as for its first message; returns why that is not possible, or "".

        Raises only if the connection is lost, or if its server accepts nothing at the moment.
        """
        self._attempt = None
        try:
            if not self._is_plain(queue):
                return f"its queue {queue!r} is not one that differs in its name alone"
            self._recorder.producer.maybe_declare(self._app.amqp.queues[queue])
        except Exception as error:
            return f"its queue cannot be declared: {self._diagnosis_unless_lost(error)[0].reason}"
        return ""

    def _diagnosis_unless_lost(self, error: Exception) -> tuple[Diagnosis, bool]:
        """Return the diagnosis of an ``error`` of user code or of one form, and whether it left the publish call.

        Raises ``error`` if the connection is lost or its server accepts nothing now, which does not concern the form.
        """
        connection = self._recorder.producer.connection
        of_publish = self._attempt is not None and self._attempt.left_publish(error)
        found = diagnose(error, connection, of_broker=of_publish or not connection.connected)
        if found.kind is FailureKind.UNCERTAIN or found.is_state:
            raise error
        return found, of_publish

    def _fits(self, form: Form, candidate: Arguments) -> bool:
        """Return whether the arguments fit signature and serializer; if not, the form is not to blame."""
        task = self._app.tasks.get(form.task)
        check = getattr(task, "__header__", None) if getattr(task, "typing", False) else None
        options = self._make_entry(form, "", candidate).options
        serializer = options.get("serializer") or getattr(task, "serializer", None) or self._app.conf.task_serializer
        try:
            if check is not None:
                check(*candidate.args, **candidate.kwargs)
            _serialize((candidate.args, candidate.kwargs, {}), serializer=serializer)
        except (TypeError, EncodeError):
            return False
        except SerializerNotInstalled:
            return True  # concerns the form, not the arguments
        return True

    def _try(self, form: Form, first: Arguments, second: Arguments, observers: Sequence[str]) -> Answer:
        """Make and prove an envelope; up to ``_TRIES`` times, because times written by observers vary in length."""
        why = ""
        for _ in range(_TRIES):
            try:
                proven = self._prove(form, first, second)
            except Uncut as uncut:
                why = f"{form.task}: {uncut}"
                continue
            if isinstance(proven, str):
                why = proven
                continue
            if isinstance(proven, Envelope):
                proven.observers = observers
            return proven
        return why

    def _prove(self, form: Form, first: Arguments, second: Arguments) -> Answer:
        own = invented(form)
        if self._recorder.is_asked and 0 < len(first.own.routing_key.encode(errors="replace")) <= SHORT_TEXT_MAX:
            own = Own({**own.options, ROUTING_KEY: first.own.routing_key})
        recording, sample = self._record(form, first._replace(own=own), invented=True)
        body = TaskBody(self._app, recording, self._app.tasks.get(form.task), own.links)
        envelope = self._recorder.envelope(recording, sample, body)
        if envelope.lifetime is not None:
            time.sleep(0.002)  # two recordings at different times reveal a fixed expiry
        again, other = self._record(form, second._replace(own=invented(form)), invented=True)
        if again.key != envelope.key_in(again.queue, other.own) or rendered(envelope, again, other) != again.wire:
            return f"two messages of {form.task} differ in more than id, time and arguments"
        refusal = self._recorder.try_out(recording)
        return Refusal(refusal) if refusal else envelope

    def _record(self, form: Form, arguments: Arguments, *, invented: bool = False) -> tuple[Recording, SampleMessage]:
        """Record a message of Celery's; again if its expiry happens to have no microseconds.

        ``invented``: the job-specific options are, so the routing key may lead nowhere, and the queue is not declared.
        """
        anywhere = invented and ROUTING_KEY in form.options
        queue = arguments.own.options.get(QUEUE) if invented else None
        if queue is not None:
            with undeclared(self._recorder.producer, self._app.amqp.queues, queue):
                return self._record_whole(form, arguments, anywhere)
        return self._record_whole(form, arguments, anywhere)

    def _record_whole(self, form: Form, arguments: Arguments, anywhere: bool) -> tuple[Recording, SampleMessage]:
        for _ in range(_TRIES - 1):
            recording, sample = self._record_once(form, arguments, anywhere)
            if sample.own.expires_at is not None or has_all_digits(recording):
                return recording, sample
        return self._record_once(form, arguments, anywhere)

    def _record_once(self, form: Form, arguments: Arguments, anywhere: bool) -> tuple[Recording, SampleMessage]:
        sample = SampleMessage(
            str(uuid.uuid4()),
            random.randint(FIRST_FIRE_MS, LAST_FIRE_MS),  # noqa: S311 - a recognisable value, not a secret
            f"wheelbeat {uuid.uuid4()}",
            arguments.args,
            arguments.kwargs,
            arguments.own._replace(key=f"monitor:{uuid.uuid4()}"),
        )
        entry = self._make_entry(form, sample.name, arguments)
        headers = dict(form.headers)
        if JOB in headers:
            headers[JOB] += sample.own.key
        run = Run(0, "", sample.name, sample.fire_ms, sample.run_id, entry, 0, headers)

        def publish() -> None:
            attempt = self._attempt = Attempt(run, self._options)
            with attempt.open(), self._quiet():
                self._scheduler.apply_entry(entry, producer=self._recorder.producer)
            if attempt.errors:
                raise attempt.errors[0]

        with unsubscribed(self._app):
            return self._recorder.record(publish, anywhere=anywhere), sample


def rendered(envelope: Envelope, recording: Recording, sample: SampleMessage) -> bytes:
    """Render the message of ``recording`` with ``envelope``, as the queue would receive it."""
    pieces = envelope.pieces(envelope.body.of(sample.args, sample.kwargs, sample.own), sample.name, sample.own)
    stamps = Stamps(
        ids=rows_of([recording.headers["id"].encode()]),
        fire_ms=np.array([sample.fire_ms], np.int64),
        nonces=rows_of([recording.headers["wheelbeat_nonce"].encode()]),
        tags=recording.delivery_tag.encode(),
        now=expected_now(recording, envelope.lifetime, sample.own),
        traces=traces_of(recording.headers),
    )
    columns = PartColumns.of([pieces]).by_hole(envelope.texts, timed=envelope.has_expiries)
    return envelope.unframed(envelope.render(columns, stamps).octets.tobytes())
