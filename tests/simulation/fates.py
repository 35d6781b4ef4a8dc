"""What became of every run that one process offered: waiting, in flight, confirmed, or gone for a reason."""

from __future__ import annotations

from itertools import combinations, islice
from typing import TYPE_CHECKING, NamedTuple

from celery_wheelbeat.dispatch import FailureKind
from simulation.expectation import Offered

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from simulation.expectation import Job

PAUSE_MS = 1_000
"""How long a refused run waits apart."""
SPLIT = ("backlog", "removed", "ended", "quarantined")
"""Reasons for which a waiting run may go; which of them, its situation decides."""


class Situation(NamedTuple):
    """What decides for which reasons a waiting run may go in this turn."""

    jobs: Mapping[int, Job]
    touched_off: set[int]
    """Jobs that were deleted or defined again in this turn."""
    poisoned: set[int]
    finished: set[int]
    """One-offs that were confirmed in this turn."""
    down: bool
    """The broker has been away for longer than a second."""


class Fates:
    """The books of one process. Every broken rule raises ``AssertionError``."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        """Of the backlog, and of what is held."""
        self.waiting: dict[Offered, Job | None] = {}
        """Runs that wait, with their jobs at the time of the offer."""
        self.held: dict[Offered, tuple[Job, int]] = {}
        """Runs that the broker refused for now, with their jobs and when that was, in elapsed ms."""
        self.flying: dict[int, tuple[Offered, Job]] = {}
        """Token → run, and its job at the time of sending."""
        self.sent = 0
        self.again = 0
        self._peak = 0
        """Most runs that waited at one time of this turn."""
        self._offered: dict[Offered, int] = {}
        """Run → ``effective_from`` of a once, which may be armed again for the same instant; else 0."""
        self._of_once: set[Offered] = set()
        self.crowded_out: set[tuple[int, int]] = set()
        """Runs that went in this turn while more waited than may."""
        self._outdated: set[int] = set()
        """Tokens of runs whose jobs were redefined while they were on their way."""
        self._gives_way: set[Offered] = set()
        """Refused runs that may go in this turn: newer ones of their jobs are held, or too many."""
        self._sent_now: list[Job] = []
        """Jobs whose runs were in flight at some time of this turn."""
        self._attempted: dict[Offered, FailureKind] = {}
        self._confirmed: dict[int, tuple[bool, int]] = {}
        """One-off job → what its confirmed run was sent for, see ``Job.arming``."""
        self._newest: dict[tuple[int, int | None, int], int] = {}

    def offer(self, run: Offered, job: Job | None) -> None:
        """Note a run that the engine handed out."""
        armed_ms = job.effective_from_ms if job is not None and job.plan.kind == "once" else 0
        known = (run, run._replace(reoffered=not run.reoffered))
        assert not any(self._offered.get(one) == armed_ms for one in known), (
            f"a fire time is handed out once in a process: {run}"
        )
        self._offered[run] = armed_ms
        if job is not None and job.plan.kind == "once":
            self._of_once.add(run)
        self.waiting[run] = job
        self._peak = max(self._peak, len(self.waiting))

    def waiting_for(self, job_id: int, fire_ms: int, last_step: int) -> list[Offered]:
        """Return what waits with this job and fire time."""
        known = [
            Offered(job_id, fire_ms, step, again)
            for step in range(-last_step, last_step + 1)
            for again in (False, True)
        ]
        return [run for run in known if run in self.waiting]

    def submit(self, run: Offered, token: int, job: Job) -> None:
        """Note a run that is on its way."""
        at_offer = self.waiting.pop(run)
        assert token not in self.flying, f"a token is given once: {token}"
        if job.one_off:
            siblings = [other for other, sent in self.flying.values() if _same_arming(sent, job)]
            assert not siblings, f"a one-off has one run on its way: {run} beside {siblings}"
            assert not self.is_done(job), f"a finished one-off is not sent again: {run}"
            of_former = _is_of_former(at_offer, job)
            assert not of_former, f"a one-off is not done by a run of what it was before: {run} of {at_offer} for {job}"
        if run not in self._attempted:
            line = (run.job_id, at_offer.version if at_offer else None, run.step)
            newest_ms = self._newest.get(line)
            assert newest_ms is None or run.fire_ms > newest_ms, f"runs of a job go in order: {run} after {newest_ms}"
            self._newest[line] = run.fire_ms
        self.flying[token] = (run, job)
        self._sent_now.append(job)

    def confirm(self, token: int) -> tuple[Offered, Job]:
        """Note a run that the broker has."""
        run, job = self.flying.pop(token)
        if job.one_off:
            self._confirmed[run.job_id] = job.arming
        if run.reoffered:
            self.again += 1
        else:
            self.sent += 1
        return run, job

    def fail(self, token: int, kind: FailureKind, elapsed_ms: int, jobs: Mapping[int, Job]) -> Offered:
        """Note a run that was not confirmed; what may be sent again waits, or is held where the broker refused it."""
        run, job = self.flying.pop(token)
        if kind is FailureKind.REFUSED:
            self._hold(run, job, elapsed_ms, jobs)
        self._attempted[run] = kind
        if kind in (FailureKind.NOT_SENT, FailureKind.UNCERTAIN):
            self.waiting[run] = job
            self._peak = max(self._peak, len(self.waiting))
        return run

    def _hold(self, run: Offered, job: Job, elapsed_ms: int, jobs: Mapping[int, Job]) -> None:
        self.held[run] = (job, elapsed_ms)
        self._gives_way.update(islice(self.held, max(0, len(self.held) - self._limit)))
        now = jobs.get(run.job_id)
        if now is not None and now.enabled and now.misfire == "all":
            return
        siblings = sorted((one for one in self.held if one.job_id == run.job_id), key=lambda one: one.fire_ms)
        self._gives_way.update(siblings[:-1])

    def outdate(self, job_id: int) -> None:
        """Note that a job was redefined."""
        self._outdated.update(token for token, (run, _) in self.flying.items() if run.job_id == job_id)

    def is_current(self, token: int) -> bool:
        """Whether a run that is on its way was sent for the definition in force."""
        return token not in self._outdated

    def is_done(self, job: Job) -> bool:
        """Whether a run of this one-off was confirmed."""
        return job.one_off and self._confirmed.get(job.id) == job.arming

    def unsettled(self) -> Iterator[tuple[Offered, Job | None]]:
        """Yield what is neither confirmed nor gone, with its job."""
        yield from self.waiting.items()
        yield from ((run, job) for run, (job, _) in self.held.items())
        yield from self.flying.values()

    def is_of_once(self, run: Offered) -> bool:
        """Whether a once handed the run out, whatever the job is by now: such a run is owed however old it is."""
        return run in self._of_once

    def was_due(self, run: Offered) -> bool:
        """Whether the run was offered on time and sent at the first attempt."""
        return not run.reoffered and run not in self._attempted

    def take_back(self, held: set[Offered], elapsed_ms: int) -> None:
        """Compare with what is really held: other refused runs wait with the rest again, or went."""
        assert held <= self.held.keys(), f"runs are held that nobody refused: {held - self.held.keys()}"
        for run in [run for run in self.held if run not in held]:
            self.waiting[run], refused_ms = self.held.pop(run)
            waited = run in self._gives_way or elapsed_ms - refused_ms >= PAUSE_MS
            assert waited, f"a refused run waits apart for a moment: {run}"
        self._peak = max(self._peak, len(self.waiting))

    def reconcile(self, waiting: set[Offered], situation: Situation, skipped: Mapping[str, int]) -> str | None:
        """Compare with what really waits: everything that went must have had a reason, and the counts must agree."""
        surplus = waiting - self.waiting.keys()
        if surplus:
            return f"runs wait that nobody offered: {surplus}"
        gone = {run: job for run, job in self.waiting.items() if run not in waiting}
        crowded = self._peak > self._limit
        self.crowded_out = {(run.job_id, run.fire_ms) for run in gone} if crowded else set()
        for run in gone:
            del self.waiting[run]
        self._peak = len(self.waiting)
        allowed = {run: self._reasons(run, job, situation, crowded=crowded) for run, job in gone.items()}
        self._gives_way.clear()
        for run, reasons in allowed.items():
            if not reasons:
                return f"{run} went though nothing allowed it"
        counted = [reasons for run, reasons in allowed.items() if not run.reoffered]
        if len(counted) != sum(skipped[reason] for reason in SPLIT):
            return f"{len(counted)} runs went: {sorted(allowed)}"
        self._sent_now = [sent for _, sent in self.flying.values()]
        for size in range(1, len(SPLIT)):
            for chosen in combinations(SPLIT, size):
                bound = sum(reasons <= set(chosen) for reasons in counted)
                if bound > sum(skipped[reason] for reason in chosen):
                    return f"{bound} runs can only have gone for {chosen}: {allowed}"
        return None

    def _reasons(self, run: Offered, offered: Job | None, situation: Situation, *, crowded: bool) -> set[str]:
        job = situation.jobs.get(run.job_id)
        reasons = set()
        if job is None or not job.enabled or run.job_id in situation.touched_off or _is_of_former(offered, job):
            reasons.add("removed")
        if run.job_id in situation.poisoned:
            reasons.add("quarantined")
        flies = job is not None and any(_same_arming(sent, job) for sent in self._sent_now)
        if run.job_id in situation.finished or (job is not None and job.one_off and flies):
            reasons.add("ended")
        siblings = [other for other in self.waiting if other.job_id == run.job_id]
        newer = any(other.fire_ms > run.fire_ms or abs(other.step) > abs(run.step) for other in siblings)
        if (
            crowded
            or run in self._gives_way
            or (situation.down and newer and (job is None or not job.enabled or job.misfire != "all"))
        ):
            reasons.add("backlog")
        return reasons


def _is_of_former(offered: Job | None, job: Job) -> bool:
    """Whether a run of a one-off was offered for what the job was before."""
    return job.one_off and (offered is None or offered.arming != job.arming)


def _same_arming(sent: Job, job: Job) -> bool:
    """Whether a run was sent for the same one-off, not for what the monitor was before an edit."""
    return sent.one_off and (sent.id, sent.arming) == (job.id, job.arming)
