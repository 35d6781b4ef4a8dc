"""Sends runs through Celery's own ``apply_entry``, in a batch or singly, and returns their outcomes.

All runs of a call use one connection. User code runs here: lazy arguments, routers, overridden methods. Its exception
fails its own run and no other; only an exception that leaves the publish call describes the broker. A ``BaseException``
ends the beat, as with Celery's own scheduler, after the other runs of the chunk are sent.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_wheelbeat.dispatch import PAUSED, Confirmed, Failed, FailureKind
from celery_wheelbeat.dispatch.failures import BatchFailed, Diagnosis, diagnose, unwrapped
from celery_wheelbeat.dispatch.messages.attempt import Attempt
from celery_wheelbeat.dispatch.messages.expiry import has_expired
from celery_wheelbeat.dispatch.reports.failure_log import LinePace
from celery_wheelbeat.errors import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery_wheelbeat.dispatch import Run
    from celery_wheelbeat.runtime.clock import Clock

    Sent = tuple[list[Confirmed | Failed], Diagnosis | None]
    """Outcomes of all runs, and the failure that leaves the connection in doubt, if any."""

logger = logging.getLogger("celery.beat")

BATCH_MAX = 500
"""Most runs in one ``producer.batch()``."""
SLOW_S = 1.0
"""User code that takes longer for one run is logged, because the other runs of this lane wait for it."""
AGAIN = (FailureKind.NOT_SENT, FailureKind.UNCERTAIN)
_OWN = (FailureKind.ERROR, FailureKind.POISON)
"""Failures that concern one run and are logged here only."""


@dataclass(frozen=True, slots=True)
class CeleryLaneCallbacks:
    """The calls with which the celery lane reaches the process around it."""

    apply_entry: Callable[..., Any]
    """``Scheduler.apply_entry``, called with one entry and ``producer=``."""
    open_connection: Callable[[], Any]
    """Return a new kombu ``Connection``, not connected."""
    make_producer: Callable[[Any], Any]
    """Return a kombu ``Producer`` on a connection."""
    wake: Callable[[], None]
    """Wake the scheduling thread because there are outcomes; called from the lane's thread."""
    clock: Clock
    quiet: Callable[[int], Any]
    """Context manager around the sending of n runs; limits their log lines."""
    options: Mapping[str, Any]
    """Defaults of ``apply_async`` options for every message; the user's options win."""
    may_send: Callable[[], bool] = lambda: True
    """Asked before each write to the broker; False while it is not certain that this process may still send."""
    may_batch: Callable[[], bool] = lambda: True
    """False while single publishes are observed (a signal, an event): a batch would shift their time."""


class RunSender:
    """Sends runs on the lane's connection; owned by the lane's thread."""

    def __init__(self, callbacks: CeleryLaneCallbacks, stamp: Callable[[], None]) -> None:
        """``stamp`` is called before each run to show that the thread is alive."""
        self._callbacks = callbacks
        self._stamp = stamp
        self._one_by_one = 0
        """Number of runs still to be sent singly, to isolate the run that made a batch fail."""
        self._culprit: str | None = None
        """Id of the last run at which a connection broke."""
        self._errors = LinePace()
        self._delays = LinePace()
        self.at_hand: int | None = None
        """Token of the run being sent; an unexpected error is attributed to it."""
        self.ended_by: BaseException | None = None
        """The exception with which user code ended the process."""

    def send(self, runs: Sequence[Run], producer: Any, connection: Any) -> Sent:
        """Send up to ``BATCH_MAX`` runs with ``producer`` (watched), which publishes on ``connection``."""
        if not self._callbacks.may_send():
            return not_sent(runs), None
        batch = self._one_by_one <= 0 and getattr(producer, "supports_batch_publish", False)
        if batch and self._callbacks.may_batch():
            return self._send_batch(runs, producer, connection)
        return self._send_each(runs, producer, connection)

    def _send_batch(self, runs: Sequence[Run], producer: Any, connection: Any) -> Sent:
        """Send ``runs`` as one batch. Nothing is confirmed before the batch exits; a failed batch is uncertain."""
        failed: dict[int, Failed] = {}
        try:
            with producer.batch(BATCH_MAX):
                for run in runs:
                    found = self._attempt(run, producer, connection)
                    if found is not None and found.in_doubt:
                        raise BatchFailed(found.reason)  # noqa: TRY301 - leaves the batch, which must not be flushed
                    if found is not None:
                        failed[run.token] = Failed(run.token, found.kind, found.reason)
        except Exception as exc:
            self._one_by_one = len(runs)
            lost = diagnose(exc, connection)._replace(kind=FailureKind.UNCERTAIN, in_doubt=True)
            return [failed.get(run.token) or Failed(run.token, lost.kind, lost.reason) for run in runs], lost
        confirmed_ms = self._callbacks.clock.wall_ms()
        return [failed.get(run.token) or Confirmed(run.token, confirmed_ms) for run in runs], None

    def _send_each(self, runs: Sequence[Run], producer: Any, connection: Any) -> Sent:
        """Send ``runs`` singly, up to the first failure that leaves the connection in doubt or concerns every run."""
        outcomes: list[Confirmed | Failed] = []
        for position, run in enumerate(runs):
            if not self._callbacks.may_send():
                return outcomes + not_sent(runs[position:]), None
            self._one_by_one = max(0, self._one_by_one - 1)
            found, rest = self._attempt(run, producer, connection), runs[position + 1 :]
            if found is None:
                outcomes.append(Confirmed(run.token, self._callbacks.clock.wall_ms()))
                continue
            outcomes.append(Failed(run.token, self._kind_of(run, found), found.reason))
            if found.in_doubt:
                return outcomes + [Failed(one.token, FailureKind.NOT_SENT, "not reached") for one in rest], found
            if found.is_state:  # the server would refuse the others for the same reason
                return outcomes + [Failed(one.token, found.kind, found.reason) for one in rest], None
        return outcomes, None

    def _kind_of(self, run: Run, found: Diagnosis) -> FailureKind:
        """Return the kind of a failure; a run that breaks the connection a second time running is deferred."""
        if found.kind not in AGAIN:
            return found.kind
        again, self._culprit = run.run_id == self._culprit, run.run_id
        return FailureKind.REFUSED if again else found.kind

    def _attempt(self, run: Run, producer: Any, connection: Any) -> Diagnosis | None:
        self._stamp()
        self.at_hand, clock = run.token, self._callbacks.clock
        if has_expired(run.entry.options.get("expires"), clock.wall_ms()):
            return Diagnosis(FailureKind.EXPIRED, "its expiry has passed")
        attempt = Attempt(run, self._callbacks.options, monotonic_s=clock.monotonic_s)
        began_s = clock.monotonic_s()
        raised: BaseException | None = None
        with attempt.open():
            try:
                self._callbacks.apply_entry(run.entry, producer=producer)
            except BaseException as exc:  # the scheduling thread raises it again
                raised = exc
        if raised is not None and not isinstance(raised, Exception):
            self.ended_by = self.ended_by or raised
        self._look_at_time(run, clock.monotonic_s() - began_s - attempt.publish_s)
        return self._judge(attempt, raised, connection)

    def _judge(self, attempt: Attempt, raised: BaseException | None, connection: Any) -> Diagnosis | None:
        """Return why the run of ``attempt`` is not confirmed, or None. ``raised``: exception of ``apply_entry``."""
        run, errors = attempt.run, list(attempt.errors)
        if raised is not None and all(raised is not one for one in errors):
            if attempt.accepted and not errors:
                self._log(run, raised, f"was sent, and then {reason_of(raised)}")
                return None
            errors.append(raised)
        if not errors:
            if attempt.accepted:
                return None
            self._log(run, None, "apply_entry sent no message")
            return Diagnosis(FailureKind.ERROR, "apply_entry sent no message")
        causes = [
            (diagnose(exc, connection, of_broker=attempt.left_publish(exc) or not connection.connected), exc)
            for exc in errors
        ]
        found, exc = next((one for one in causes if one[0].in_doubt), causes[0])
        if found.kind in _OWN:
            self._log(run, unwrapped(exc), found.reason)
        return found

    def _log(self, run: Run, exc: BaseException | None, reason: str) -> None:
        """Log the failure of one run, in place of Celery's own line, which has a traceback for every run."""
        if self._errors.is_due((run.job_id, type(exc)), self._callbacks.clock.monotonic_s()):
            logger.error("Message Error: %s: %s", run.name, reason, exc_info=exc)

    def _look_at_time(self, run: Run, user_s: float) -> None:
        if user_s >= SLOW_S and self._delays.is_due(run.job_id, self._callbacks.clock.monotonic_s()):
            logger.warning(
                "beat: Code of the app took %.1f s to make one message of %s; other runs of the celery lane waited",
                user_s, run.name,
            )  # fmt: skip


def not_sent(runs: Sequence[Run]) -> list[Confirmed | Failed]:
    """Return the outcomes of runs that wait for a look at the other beats."""
    return [Failed(run.token, FailureKind.NOT_SENT, PAUSED) for run in runs]
