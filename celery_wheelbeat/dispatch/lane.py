"""Base of both lanes: the backlog, the quarantine, and the settlement of runs that were not confirmed.

Every outcome ends in the ledger; no run is dropped without a reason.
"""

from __future__ import annotations

import hashlib
import logging
from abc import ABC, abstractmethod
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from celery_wheelbeat.dispatch import FailureKind
from celery_wheelbeat.dispatch.reports.failure_log import FailureLog
from celery_wheelbeat.jobs.identity import LATER_IDS_FROM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from celery_wheelbeat.dispatch import Failed, PublisherHealth
    from celery_wheelbeat.dispatch.backlog import Backlog
    from celery_wheelbeat.dispatch.messages.run_ids import RunIds
    from celery_wheelbeat.dispatch.pending import PendingRun, PendingRuns
    from celery_wheelbeat.dispatch.reports.lateness import Lateness
    from celery_wheelbeat.engine.engine import Engine
    from celery_wheelbeat.engine.shards import JobView
    from celery_wheelbeat.jobs.definitions import DueBatch, Finished, Route
    from celery_wheelbeat.schedules.kinds import Int64s

logger = logging.getLogger("celery.beat")

SQUEEZE_AFTER_S = 1.0
"""A destination without a connection for longer than this is down: only the newest run of each job is kept."""
FIRST_CONNECTION_S = 5.0
"""The same for the first connection of a process. A busy start is slow, and runs left by the previous process are
offered at that time.
"""


class JobOutcomes(NamedTuple):
    """Changes that concern whole jobs, found while outcomes were settled."""

    finished: dict[int, Finished]
    """Single-run jobs that are done, by job id."""
    poisoned: dict[int, tuple[str, str]]
    """Jobs that can never be sent: job id → (definition hash, reason)."""
    lifted: list[int]
    """Jobs whose quarantine was lifted: they can be sent after all."""


class Rendering(NamedTuple):
    """The functions that turn a pending pair into a ``Run``."""

    run_ids: RunIds
    key_of: Callable[[int], str]
    """Job id → text key."""
    entry_of: Callable[[JobView, int], Any]
    """(job, fire time) → private ``ScheduleEntry``; None if the entry was removed meanwhile."""
    headers_of: Callable[[JobView, Any], Mapping[str, Any]] = lambda _view, _entry: {}
    """(job, that entry) → headers that the workers need besides fire time and nonce."""


class LanePublisher(Protocol):
    """The part of a publisher that does not depend on the lane."""

    @property
    def ended_by(self) -> BaseException | None:
        """The exception with which user code ended the process; nothing more is sent."""

    def start(self) -> None:
        """Start the thread."""

    def health(self) -> PublisherHealth:
        """Report for supervision."""

    def close(self, timeout_s: float) -> object:
        """Stop within ``timeout_s``."""


class Lane(ABC):
    """Base class of the lanes. ``quarantined`` (job → reason) is shared by the lanes of a beat."""

    publisher: LanePublisher

    def __init__(
        self, engine: Engine, backlog: Backlog, lateness: Lateness, quarantined: dict[int, str] | None = None
    ) -> None:
        self.backlog = backlog
        self.last_error = ""
        """The last failure in one line; begins with the job's name if it concerns one job."""
        self.failures: Counter[str] = Counter()
        """Unconfirmed sends, in runs, by ``FailureKind``; one run may fail many times."""
        self._failure_log = FailureLog()
        self._engine = engine
        self._lateness = lateness
        self._quarantined: dict[int, str] = {} if quarantined is None else quarantined
        self._connected_s: float | None = None
        """Monotonic time of the last check that found a connection, else of the first check."""
        self.least_patience_s = 0.0
        """A destination is not taken to be down before it was without a connection for this long."""
        self._patience_s = FIRST_CONNECTION_S
        self._is_down = False
        """Whether there was no connection for longer than the patience."""

    def accepts(self, due: DueBatch) -> NDArray[np.bool_]:
        """Return which of the due runs may enter the backlog of this lane."""
        return np.ones(len(due), np.bool_)

    @abstractmethod
    def name_runs(self, rendering: Rendering) -> None:
        """Set what turns pending runs into messages; runs wait until the first call."""

    @abstractmethod
    def refresh(self, now_s: float) -> None:
        """Requeue deferred runs whose pause is over, and note whether the destination is down."""

    @abstractmethod
    def submit_due(self, now_s: float) -> int:
        """Submit as many waiting runs as the publisher has room for; returns how many left the queue.

        The backlog is squeezed instead while the destination is down.
        """

    @abstractmethod
    def can_submit(self) -> bool:
        """Return whether ``submit_due`` would submit anything."""

    @abstractmethod
    def collect_outcomes(self, now_s: float) -> JobOutcomes:
        """Settle the outcomes of the publisher; returns the changes that concern whole jobs."""

    def take_out(self, where: NDArray[np.bool_]) -> PendingRuns:
        """Give away the runs of the shards at ``where`` that are not in flight, and return them."""
        return self.backlog.take_out(where)

    def begin_stop(self, timeout_s: float) -> None:  # noqa: B027
        """Begin to stop the publisher, if that takes more than its ``close``."""

    @property
    def trouble(self) -> str:
        """The state or failure to show for this lane; empty if there is none."""
        return self.last_error

    def finish(self, job_ids: Iterable[int]) -> None:
        """Disable single-run jobs that are done; their waiting runs are skipped(ended)."""
        ids = np.array(sorted(job_ids), np.int64)
        self._engine.finish(ids)
        self.backlog.drop(ids, "ended")

    def redefined(self, ids: Int64s) -> list[int]:
        """Record that the definitions of ``ids`` changed; returns the jobs whose quarantine was lifted."""
        self.backlog.leases.outdate(ids)
        lifted = [job_id for job_id in ids.tolist() if job_id in self._quarantined] if self._quarantined else []
        for job_id in lifted:
            del self._quarantined[job_id]
        return lifted

    @property
    def quarantined(self) -> dict[int, str]:
        """Jobs that are not sent, with the reason."""
        return self._quarantined

    def _note_connection(self, now_s: float, *, connected: bool) -> None:
        if connected:
            self._connected_s, self._patience_s = now_s, SQUEEZE_AFTER_S
        elif self._connected_s is None:
            self._connected_s = now_s
        self._is_down = now_s - self._connected_s > max(self._patience_s, self.least_patience_s)

    def _settle_failed(self, failed: Sequence[Failed], of_jobs: JobOutcomes, now_s: float) -> None:
        """Settle leases of which no run was confirmed, each for one reason."""
        if not failed:
            return
        runs = Counter[tuple[FailureKind, str]]()
        tokens: dict[FailureKind, list[int]] = {}
        for one in failed:
            count = self.backlog.leases.count_of(one.token)
            runs[one.kind, one.reason] += count
            self.failures[one.kind.value] += count
            tokens.setdefault(one.kind, []).append(one.token)
        self._failure_log.note(runs, now_s)
        errors = [one for one in failed if one.kind is not FailureKind.EXPIRED]
        if errors:
            self.last_error = self._describe(errors[-1])
        self.backlog.requeue(tokens.pop(FailureKind.NOT_SENT, []) + tokens.pop(FailureKind.UNCERTAIN, []))
        self.backlog.defer(tokens.pop(FailureKind.REFUSED, []), now_s)
        for kind, of_kind in tokens.items():
            if kind is not FailureKind.POISON:
                self.backlog.skip(of_kind, kind.value)
        for one in failed:
            if one.kind is FailureKind.POISON:
                for run in self.backlog.skip([one.token], "error").singly():
                    self._quarantine(run, one.reason, of_jobs)

    def _quarantine(self, run: PendingRun, reason: str, of_jobs: JobOutcomes) -> None:
        """Quarantine a monitor that can never be sent. An entry or one-off run loses only the run."""
        (view,) = self._engine.lookup([run.job_id]) if 0 <= run.job_id < LATER_IDS_FROM else (None,)
        if view is not None and not run.outdated:
            self._quarantined[run.job_id] = reason
            of_jobs.poisoned[run.job_id] = (definition_hash_of(view, self._engine.routes[view.route_index]), reason)
            logger.error("beat: %s is quarantined: %s", view.name, reason)

    def _describe(self, failed: Failed) -> str:
        job_ids = self.backlog.leases.runs_of(failed.token).ids[:1].tolist()
        if not job_ids or failed.kind in (FailureKind.NOT_SENT, FailureKind.UNCERTAIN):
            return failed.reason  # concerns the destination, not the job
        (view,) = self._engine.lookup(job_ids)
        return f"{view.name}: {failed.reason}" if view else failed.reason


def definition_hash_of(view: JobView, route: Route) -> str:
    """Return a digest (32 hex digits, BLAKE2b) of name, payload and route of a job."""
    return hashlib.blake2b(repr((view.name, view.payload, route)).encode(), digest_size=16).hexdigest()
