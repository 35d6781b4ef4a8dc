"""The choice of a run's lane, and the questions to the publisher on which it depends.

A run takes the fast lane if the message of its form has an envelope, and neither the definition of its job
(``apart``) nor a finding at run time speaks against it: arguments that do not render, an entry that was handed out
to user code, a check-in of Sentry. ``LaneChoice`` decides when a run is offered, as far as its route decides, and again
when it is submitted. It neither sends nor moves runs.

Only runs of forms without an answer wait. Every form is asked about again after a reconnect, and when settings, hooks
or patches could have changed Celery's message.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from celery_wheelbeat.dispatch import lane_rules
from celery_wheelbeat.dispatch.messages.template import FIRST_FIRE_MS, LAST_FIRE_MS
from celery_wheelbeat.jobs.definitions import OVERLAP_SHIFT, Flag

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from numpy.typing import NDArray

    from celery_wheelbeat.dispatch.backlog import Backlog
    from celery_wheelbeat.dispatch.fast_lane.batches import FormVerdict, QueueVerdict
    from celery_wheelbeat.dispatch.fast_lane.envelope_registry import Declaring, EnvelopeRegistry, Group
    from celery_wheelbeat.dispatch.fast_lane.places.placing import Placing
    from celery_wheelbeat.dispatch.fast_lane.places.queue_registry import QueueRegistry
    from celery_wheelbeat.dispatch.fast_lane.publisher import FastPublisher
    from celery_wheelbeat.dispatch.fast_lane.rendering import JobMessages
    from celery_wheelbeat.dispatch.messages.envelope_maker import Arguments
    from celery_wheelbeat.dispatch.messages.patterns import Form
    from celery_wheelbeat.dispatch.messages.tracing import CheckIns
    from celery_wheelbeat.dispatch.pending import PendingRuns, RunLease
    from celery_wheelbeat.engine.shards import JobColumns
    from celery_wheelbeat.jobs.definitions import DueBatch
    from celery_wheelbeat.schedules.kinds import Int64s

SETTINGS_EVERY_S = 1.0
REASONS_KEPT_S = 300.0
"""Some reasons are temporary (a queue that could not be declared): a form is asked about again after this time."""
REMEMBERED_MAX = 100_000
"""Most jobs remembered per reason; runs of further jobs are judged each time."""
QUESTIONS_MAX = 32
"""Most open questions with which a run still waits for the answer to its own. With more, runs take the celery lane
until the answer is there: an answer takes some milliseconds, so runs wait a fraction of a second at most."""
WAITING_MAX = 50_000
"""Most runs that wait for answers; beyond it nothing is submitted until an answer comes, which takes milliseconds."""


class FastLaneCallbacks(NamedTuple):
    """The calls with which the fast lane reaches the process around it."""

    now: Callable[[], datetime]
    """``app.now``."""
    guard: Callable[[], object]
    """Returns a value that changes when envelopes may be out of date; cheap."""
    settings_token: Callable[[], object]
    """The same for settings; slow, called once a second."""
    admits_lines: Callable[[int], bool]
    """n → whether n runs may be logged with a line each."""


class Answers:
    """Asks the publisher, parks runs, and releases them when the answer comes."""

    def __init__(
        self,
        backlog: Backlog,
        publisher: FastPublisher,
        forms: EnvelopeRegistry,
        queues: QueueRegistry,
        callbacks: FastLaneCallbacks,
    ) -> None:
        self.epoch = 0
        """Number of the connection to which the envelopes in use belong."""
        self.waiting = 0
        """Number of parked runs."""
        self._backlog = backlog
        self._publisher = publisher
        self._forms = forms
        self._queues = queues
        self._callbacks = callbacks
        self._open: set[Form] = set()
        """Forms about which the publisher is asked."""
        self._round = 0
        """Increases when all forms are reset; answers to questions of an earlier round are ignored."""
        self._guard: tuple[object, int] | None = None
        self._settings: object = None
        self._settings_due_s = 0.0
        self._reasons_due_s = 0.0
        self._refused_due = False
        """Whether the refused forms have to be asked about again."""

    def may_wait(self, form: Form) -> bool:
        """Return whether runs wait for the answer about ``form``.

        Only an answer shows whether the broker knows a named exchange, so the celery lane is no alternative for those.
        """
        return (
            len(self._open) <= QUESTIONS_MAX
            or self._backlog.leases.is_parked(form)
            or '"exchange"' in form.route.options
        )

    def reset_if_outdated(self) -> None:
        """Reset all forms and requeue parked runs after a reconnect or a change of Celery's publish path."""
        self.epoch = self._publisher.epoch
        token = (self._callbacks.guard(), self.epoch)
        if token != self._guard:
            if self._guard is not None and token[0] == self._guard[0]:
                self._queues.reconnected()
            else:
                self._queues.forget()
            self._guard = token
            self._round += 1
            self._refused_due = True
            self._forms.forget()
            self.requeue_parked()
            self._open.clear()

    def requeue_parked(self) -> None:
        """Let no run wait for an answer; those that are submitted again wait again."""
        self._backlog.requeue(self._backlog.leases.unpark_all())
        self.waiting = 0

    def refresh(self, now_s: float) -> None:
        """Reset answers that may be out of date; check the settings once a second, old reasons every few minutes."""
        if now_s >= self._settings_due_s:
            self._settings_due_s = now_s + SETTINGS_EVERY_S
            settings = self._callbacks.settings_token()
            if settings != self._settings:
                self._settings, self._guard = settings, None
        self.reset_if_outdated()
        if now_s >= self._reasons_due_s:
            self._reasons_due_s = now_s + REASONS_KEPT_S
            self._forms.forget_reasons()
            self._queues.forget_reasons()
            self._refused_due = True

    def take_refused_due(self) -> bool:
        """Return, once, whether the refused forms have to be asked about again; no run triggers it."""
        due, self._refused_due = self._refused_due, False
        return due

    def ask(self, form: Form, candidates: Sequence[Arguments]) -> None:
        """Ask the publisher about ``form``; ``candidates``: arguments of some of its jobs."""
        self._open.add(form)
        self._forms.asked(form)
        self._publisher.ask(form, candidates, self._round)

    def wait(self, cause: Form | Declaring, lease: RunLease) -> None:
        """Park runs until the form, or the queues, have an answer."""
        self._backlog.leases.park(lease.token, cause)
        self.waiting += len(lease.runs.ids)

    def apply(self, verdict: FormVerdict) -> bool:
        """Store an answer and requeue the runs that waited for it; returns whether the answer is current."""
        if verdict.epoch != self._publisher.epoch or verdict.asked_in != self._round:
            return False  # out of date: asked again, or about to be
        self._open.discard(verdict.form)
        self._forms.learn(verdict.form, verdict.answer)
        self._requeue([verdict.form])
        return True

    def declared(self, verdicts: Sequence[QueueVerdict]) -> None:
        """Store what is known about queues and requeue the runs that waited for it."""
        for verdict in verdicts:
            self._queues.learn(verdict.question, verdict.reasons)
        self._requeue([verdict.question for verdict in verdicts])

    def _requeue(self, causes: Iterable[Form | Declaring]) -> None:
        tokens = [token for cause in causes for token in self._backlog.leases.unpark(cause)]
        self.waiting -= sum(self._backlog.leases.count_of(token) for token in tokens)
        self._backlog.requeue(tokens)


def apart(ids: Int64s, flags: NDArray[np.uint16]) -> NDArray[np.bool_]:
    """Return which jobs take the celery lane because of their definition: entries and single-run jobs."""
    return (ids < 0) | ((flags & Flag.ONE_OFF) > 0)


def reason_apart(job_id: int, flags: int) -> str | None:
    """Return why the definition of a job needs the celery lane; None if it does not."""
    if job_id < 0:
        return lane_rules.ENTRY
    return lane_rules.ONE_OFF if flags & Flag.ONE_OFF else None


def apart_by_reason(
    ids: NDArray[np.integer[Any]], flags: NDArray[np.uint16]
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield each reason with a mask of the jobs that it applies to; a job has at most one reason."""
    entries = ids < 0
    yield lane_rules.ENTRY, entries
    yield lane_rules.ONE_OFF, ~entries & ((flags & Flag.ONE_OFF) > 0)


def kinds_of(route: NDArray[np.unsignedinteger[Any]], flags: NDArray[np.uint16]) -> Int64s:
    """Return the kind of each job: route index and overlap policy, packed."""
    overlap = (flags >> OVERLAP_SHIFT & 3).astype(np.int64)
    return route.astype(np.int64) << lane_rules.KIND_SHIFT | overlap


class ChosenLanes(NamedTuple):
    """The fate of runs that were to be submitted; each position is in one part."""

    removed: NDArray[np.intp]
    """Their jobs do not exist any more or are disabled."""
    quarantined: NDArray[np.intp]
    exceptions: NDArray[np.intp]
    """They need another lane, unlike other runs of their form."""
    groups: Sequence[Group]
    """All others, by form: the answer says what becomes of them."""


class LaneChoice:
    """Chooses the lane of each run. ``quarantined`` (job → reason) is shared by the lanes of a beat."""

    def __init__(
        self,
        forms: EnvelopeRegistry,
        messages: JobMessages,
        placing: Placing,
        quarantined: Mapping[int, str],
        *,
        handed_out: Callable[[], frozenset[int]],
        check_ins: Callable[[], CheckIns | None],
    ) -> None:
        """``handed_out``: jobs whose entries user code holds and may write to; ``check_ins``: the jobs that Sentry
        checks in for, None = none.
        """
        self.unfit: dict[int, str] = {}
        """Jobs that do not render → reason; the celery lane reports them as Celery does."""
        self._checked_in: set[int] = set()
        """Jobs that Sentry checks in for, found when they were due, up to ``REMEMBERED_MAX``; for the report."""
        self._forms = forms
        self._messages = messages
        self._placing = placing
        self._quarantined = quarantined
        self._find_handed_out = handed_out
        self._find_check_ins = check_ins
        self._handed_out: frozenset[int] = frozenset()
        self._check_ins: CheckIns | None = None

    def refresh(self) -> None:
        """Look up what user code holds and what Sentry watches; once a tick."""
        self._handed_out = self._find_handed_out()
        self._check_ins = self._find_check_ins()

    def accepts(self, due: DueBatch) -> NDArray[np.bool_]:
        """Return which due runs may take this lane: none of an entry, and none of a route without any envelope."""
        accepted = due.ids >= 0
        if self._forms.any_slow:
            accepted &= ~self._forms.slow(due.route_index)
        return accepted

    def of(self, runs: PendingRuns, jobs: JobColumns) -> ChosenLanes:
        """Choose for runs that are about to be submitted; ``jobs`` holds the job of each run."""
        stays = jobs.enabled.copy()
        quarantined = _NOWHERE
        if self._quarantined:
            barred = np.fromiter(self._quarantined, np.int64, len(self._quarantined))
            (quarantined,) = np.nonzero(stays & np.isin(runs.ids, barred))
            stays[quarantined] = False
        (exceptions,) = np.nonzero(stays & self._exceptions(runs, jobs))
        stays[exceptions] = False
        (positions,) = np.nonzero(stays)
        kinds = kinds_of(jobs.route[positions], jobs.flags[positions])
        groups: list[Group] = []
        for group in self._forms.groups(kinds, jobs.interval[positions]):
            ours = group._replace(positions=positions[group.positions])
            groups += self._placing.split(ours, jobs) if group.form.options else [ours]
        return ChosenLanes(np.flatnonzero(~jobs.enabled), quarantined, exceptions, groups)

    def _exceptions(self, runs: PendingRuns, jobs: JobColumns) -> NDArray[np.bool_]:
        """Return a mask of the runs that need another lane, whatever their form."""
        found = apart(runs.ids, jobs.flags)
        found |= (runs.fire_ms < FIRST_FIRE_MS) | (runs.fire_ms > LAST_FIRE_MS)
        if self._check_ins is not None:
            (there,) = np.nonzero(jobs.enabled & ~found)
            names = self._messages.names(jobs.ref[there])
            watched = there[self._check_ins.of(names, jobs.interval[there])]
            found[watched] = True
            if len(self._checked_in) < REMEMBERED_MAX:
                self._checked_in.update(runs.ids[watched].tolist())
        others = self._handed_out | self.unfit.keys()
        if others:
            found |= np.isin(runs.ids, np.fromiter(others, np.int64, len(others)))
        return found

    def note_unfit(self, found: Mapping[int, str]) -> None:
        """Remember jobs that do not render: job id → reason."""
        room = max(0, REMEMBERED_MAX - len(self.unfit))
        self.unfit.update(islice(found.items(), room))

    def redefined(self, ids: Int64s) -> None:
        """Forget findings about jobs whose definitions have changed."""
        if self.unfit or self._checked_in:
            changed = ids.tolist()
            self._checked_in.difference_update(changed)
            for job_id in changed:
                self.unfit.pop(job_id, None)

    def by_reason(self) -> Mapping[str, Collection[int]]:
        """Return reason → jobs found at run time, when they were due; a job is in one group only."""
        held = self._find_handed_out()
        return {
            lane_rules.HANDED_OUT: held,
            lane_rules.CHECKED_IN: self._checked_in - held,
            lane_rules.UNFIT: self.unfit.keys() - self._checked_in - held,
        }


_NOWHERE = np.empty(0, np.intp)
