"""The auditor: distrusts every component and recomputes what each process had to do, from the history of definitions.

It receives the values that crossed the edges (clock readings, news of the database, runs handed over, outcomes) and
compares, turn by turn: the runs offered with those of the ``Expectation``; every run that left with a reason that its
situation allows; ids, order, versions and marks. The first thing that is wrong ends the simulation.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

from celery_wheelbeat.dispatch import Confirmed, FailureKind
from celery_wheelbeat.dispatch.pending import REOFFERED, STEP_SHIFT
from celery_wheelbeat.jobs.definitions import Offer
from celery_wheelbeat.runtime.clock import Motion
from celery_wheelbeat.sources.messages import Changed, Loaded, Opened
from simulation.deliveries import Deliveries
from simulation.expectation import Expectation, Job, Offered, Rules
from simulation.fates import Fates, Situation
from simulation.fire_times import plan_of
from simulation.looks import Looks
from simulation.promises import demand

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from celery_wheelbeat.beat.beat import Beat
    from celery_wheelbeat.beat.supervision import Supervision
    from celery_wheelbeat.dispatch import Failed, Run
    from celery_wheelbeat.jobs.definitions import ChangeBatch, DefinitionBatch, DueBatch
    from celery_wheelbeat.runtime.clock import Reading
    from celery_wheelbeat.sources.messages import SourceMessage
    from simulation.sim_broker import SimBroker, SimPublisher
    from simulation.sim_clock import SimClock
    from simulation.sim_database import SimTable

AHEAD_MS = 5_000
OPENING_S = 10.0
LATENESS_MS = 2_500
"""Longest lateness of a run while nothing is wrong: a tick, a rest, a turn of the publisher."""
MARK_AGE_MS = 6_000
FIRST_MARK_S = 5.0
"""How long a first start waits for its mark."""


class Auditor:
    """One for the whole life of an installation; ``begin_life`` starts the books of a new process."""

    def __init__(self, table: SimTable, clock: SimClock, rules: Rules, entries: dict[str, Job]) -> None:
        self.table = table
        self.clock = clock
        self.rules = rules
        self.entries = entries
        """Entries of the present configuration, by name."""
        self.disturbed_ms = 0
        self._behind_ms = 0
        """When something last went wrong on purpose, in elapsed ms."""
        self.turns = 0
        self.runs = 0
        self.given_up: set[tuple[int, int]] = set()
        """Runs that the broker or the user's code refused for good."""
        self._marked = False
        """A first start has stored its mark."""

    def disturb(self) -> None:
        """Note that a fault was injected: promises about time rest until it is over."""
        self.disturbed_ms = self.clock.elapsed_ms

    def calm_for(self, ms: int) -> bool:
        """Whether nothing has gone wrong for ``ms``."""
        return self.clock.elapsed_ms - self.disturbed_ms > ms

    def begin_life(self, beat: Beat, supervision: Supervision, publisher: SimPublisher) -> None:
        """Begin the books of a new process."""
        self.disturb()
        self.beat = beat
        self.supervision = supervision
        self.publisher = publisher
        self.expectation = Expectation(self.rules)
        self.fates = Fates(self.rules.backlog_max)
        self._begun_s = self.clock.monotonic_s()
        self._started = self._opened = self._entries_loaded = False
        self._first_mark_s: float | None = None
        """Since when the process waits for its first mark, in monotonic s."""
        self._looks = Looks()
        self._entry_edits: dict[int, Job | None] = {}
        self._cause = "clock"
        self._poisoned: set[int] = set()
        self._touched_off: set[int] = set()
        self._finished_now: set[int] = set()
        self._failed_now: Counter[str] = Counter()
        self._connected_s: float | None = None
        self._ledger = Counter[str]()
        self.deliveries = Deliveries(self.table, self.clock.elapsed_ms)

    # What the process is seen to do, in the order of a turn.

    def entry_edited(self, job_id: int, job: Job | None) -> None:
        """An entry was added while the process runs, or removed (None)."""
        if self._entries_loaded:
            self._entry_edits[job_id] = job

    def looked(self, wall_ms: int, monotonic_s: float, reading: Reading) -> None:
        """The scheduling thread has read the clock."""
        motion, now_ms = self._looks.judge(wall_ms, monotonic_s)
        demand(
            (reading.motion, reading.now_ms) == (motion, now_ms),
            "a reading of the clock is judged by its rule",
            reading=reading,
            expected=(motion, now_ms),
        )
        if motion is not Motion.STEADY:
            self.disturb()
        self.now_ms = now_ms
        self._cause = "stall" if motion is Motion.STALLED else "clock"
        if motion is Motion.BACK and self._started:
            right_ms = self._looks.right_ms
            if self.beat.state == "loading":
                marked_ms = self.beat.mark.mark_ms or 0
                right_ms = marked_ms if right_ms is None else min(right_ms, marked_ms)
            self.expectation.step_back(now_ms, reading.steps, right_ms)

    def took(self, news: Iterable[SourceMessage]) -> None:
        """The scheduling thread has taken news of the database."""
        self.deliveries.note_commits()
        for item in news:
            if isinstance(item, Opened):
                self._begin(item.marks.get("broker", []), opened=True)
                self._opened = True
            elif isinstance(item, Loaded):
                self._load(item.batch)
            elif isinstance(item, Changed):
                self._change(item.changes)
        if not self._started and self.clock.monotonic_s() - self._begun_s > OPENING_S:
            self._begin([], opened=False)
        if self._started and not self._entries_loaded:
            self._load_entries()
        self._edit_entries()

    def offered(self, due: Sequence[DueBatch]) -> None:
        """The engine has handed out runs."""
        found = [
            Offered(job_id, fire_ms, batch.step, batch.offer is Offer.REOFFERED)
            for batch in due
            for job_id, fire_ms in zip(batch.ids.tolist(), batch.fire_ms.tolist(), strict=True)
        ]
        if self._started:
            self.expectation.advance(self.now_ms, self._cause)
        expected, self.expectation.due = self.expectation.due, []
        surplus, lacking = Counter(found) - Counter(expected), Counter(expected) - Counter(found)
        demand(
            not surplus and not lacking,
            "the runs offered are those that the definitions and the clock call for",
            surplus=list(surplus),
            lacking=list(lacking),
            jobs=[self.expectation.jobs.get(run.job_id) for run in (surplus | lacking)],
            now_ms=self.now_ms,
        )
        for run in found:
            demand(run.fire_ms <= self.now_ms, "no run is early", run=run, now_ms=self.now_ms)
            self.fates.offer(run, self.expectation.jobs.get(run.job_id))
        self.runs += len(found)
        now_s = self.clock.monotonic_s()
        if self.publisher.connected or self._connected_s is None:
            self._connected_s = now_s

    def submitted(self, runs: Sequence[Run]) -> None:
        """Runs were handed to the publisher."""
        self._check_first_mark()
        self._take_back()
        for run in runs:
            job = self.expectation.jobs.get(run.job_id)
            demand(job is not None and job.enabled, "only jobs in force are sent", run=run, job=job)
            assert job is not None
            if job.version is not None:
                demand(
                    run.entry.args == [job.version],
                    "a run is rendered from the definition in force",
                    sent=run.entry.args,
                    job=job,
                )
            candidates = self.fates.waiting_for(run.job_id, run.fire_ms, self.expectation.step)
            offered = [known for known in candidates if run.run_id == run_id(job.key, known)]
            demand(len(offered) == 1, "a run has the id that anyone can recompute", run=run, candidates=candidates)
            demand(run.job_id not in self._poisoned, "a quarantined job is not sent", run=run)
            self.fates.submit(offered[0], run.token, job)

    def settled(self, outcomes: Sequence[Confirmed | Failed], asked_ms: int) -> None:
        """The scheduling thread has received outcomes of runs, having asked at ``asked_ms`` of elapsed time."""
        self._take_back()
        for outcome in outcomes:
            if isinstance(outcome, Confirmed):
                run, job = self.fates.confirm(outcome.token)
                self._check_lateness(run, job, outcome.confirmed_ms)
                if job.one_off and self._same_arming(job):
                    self.expectation.finish(job.id)
                    self._finished_now.add(job.id)
                continue
            current = self.fates.is_current(outcome.token)
            run = self.fates.fail(outcome.token, outcome.kind, asked_ms, self.expectation.jobs)
            if outcome.kind in (FailureKind.ERROR, FailureKind.POISON, FailureKind.UNROUTABLE):
                self.given_up.add((run.job_id, run.fire_ms))
            if outcome.kind in (FailureKind.ERROR, FailureKind.POISON):
                self._failed_now["error"] += not run.reoffered
            if outcome.kind is FailureKind.UNROUTABLE:
                self._failed_now["unroutable"] += not run.reoffered
            if outcome.kind is FailureKind.POISON and current:
                self._poisoned.add(run.job_id)

    def turn_ended(self) -> None:
        """A turn is over: the books must balance now."""
        self.turns += 1
        dispatch, ledger = self.beat.dispatcher, self.beat.engine.ledger
        demand(ledger.difference(dispatch.pending) == 0, "sent + skipped + pending = expected", ledger=vars(ledger))
        demand(dispatch.strays == 0, "every outcome belongs to a run in flight")
        self._take_back()
        self._check_account(_waiting(dispatch.lanes[-1].backlog))
        self._check_mark()
        if self.beat.state == "running":
            self.deliveries.check(self.clock.elapsed_ms, self.disturbed_ms + 12_000, self.expectation.jobs)
        self._check_bounds()
        demand(not self.supervision._findings, "the watchdog finds nothing where nothing was damaged",
               findings=self.supervision._findings)  # fmt: skip

    def closed(self) -> None:
        """A process has ended in order: what was left is counted."""
        ledger = self.beat.engine.ledger
        demand(ledger.difference(0) == 0, "at the end everything is sent or skipped", ledger=vars(ledger))

    def overdue(self) -> list[Offered]:
        """Return the runs that should be settled by now."""
        return [run for run, _ in self.fates.unsettled() if run.fire_ms < self.now_ms - LATENESS_MS]

    def epilogue(self, broker: SimBroker) -> None:
        """Everything has worked for a while: nothing may be left undone."""
        beat = self.beat
        demand(beat.state == "running", "a beat runs", state=beat.state)
        demand(not self.overdue(), "pending returns to 0", left=self.overdue())
        in_force = {job_id: job.version for job_id, job in self.expectation.jobs.items() if job_id >= 0}
        stored = self.deliveries.current()
        demand(in_force == stored, "every definition is in force in the end", in_force=in_force, stored=stored)
        if all(commit.logged for commit in self.table.history):
            demand(beat.sources.status()["drift_found"] == 0, "the reconcile finds no drift")
        self._check_once(broker)

    # The parts of it.

    def _load(self, batch: DefinitionBatch) -> None:
        for job in self.deliveries.jobs(batch):
            if job.id in self.expectation.jobs:
                self._redefine(job)  # a load that had to begin again
            else:
                self.expectation.load(job)

    def _change(self, changes: ChangeBatch) -> None:
        for job_id in changes.deleted_ids.tolist():
            self.deliveries.delete(job_id)
            self.expectation.delete(job_id)
            self._touched_off.add(job_id)
            self._lift(job_id)
        for job in self.deliveries.jobs(changes.upserts):
            self._redefine(job)

    def _redefine(self, job: Job) -> None:
        former = self.expectation.jobs.get(job.id)
        if former is None or former.arming != job.arming or not job.enabled:
            self._touched_off.add(job.id)
        self.expectation.put(job)
        if self.fates.is_done(job):
            self.expectation.finish(job.id)
            self._finished_now.add(job.id)
        self._lift(job.id)

    def _take_back(self) -> None:
        self.fates.take_back(_deferred(self.beat.dispatcher.lanes[-1]), self.clock.elapsed_ms)

    def _lift(self, job_id: int) -> None:
        """A job that was redefined may be sent again, and what is on its way says nothing about it any more."""
        self._poisoned.discard(job_id)
        self.fates.outdate(job_id)

    def _latest_of_each_shard(self, documents: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the greatest stored mark of each shard; empty without a usable document."""
        usable = [doc for doc in documents if latest_of(doc) <= self.now_ms + AHEAD_MS]
        shards = range(len(self.beat.engine.shards)) if usable else ()
        return [max(mark_of(doc, shard) for doc in usable) for shard in shards]

    def _check_first_mark(self) -> None:
        """A first start sends its first run only after its mark is stored, or could not be."""
        if self._first_mark_s is None:
            return
        self._marked = any("broker" in json.loads(row["marks"]) for row in self.table.beats.values())
        refused = self.table.refused_reports > self._refused_before
        waited = self.clock.monotonic_s() - self._first_mark_s > FIRST_MARK_S
        demand(self._marked or refused or waited, "a first start stores its mark before its first run")
        self._first_mark_s = None

    def _begin(self, documents: Sequence[Mapping[str, Any]], *, opened: bool) -> None:
        self.expectation.shard_marks = self._latest_of_each_shard(documents)
        demand(bool(documents) or not self._marked or not opened, "what a first start has stored is found again")
        if opened and not any(latest_of(doc) <= self.now_ms + AHEAD_MS for doc in documents):
            self._first_mark_s, self._refused_before = self.clock.monotonic_s(), self.table.refused_reports
        if self._started:
            usable = [latest_of(doc) for doc in documents if latest_of(doc) <= self.now_ms + AHEAD_MS]
            self.expectation.mark_ms = max(usable, default=self._start_ms)
            self.expectation.first_start = not usable
            return
        usable = [doc for doc in documents if latest_of(doc) <= self.now_ms + AHEAD_MS]
        newest = max(usable, key=latest_of, default=None)
        steps = max((doc["steps"] for doc in documents), default=0)
        relived_ms = max((doc["relived_until_ms"] for doc in usable), default=0)
        settled_ms = max((doc["settled_until_ms"] for doc in usable), default=0)
        if newest and newest.get("reached_ms", 0) - newest.get("held_ms", 0) > AHEAD_MS:
            if self.now_ms < newest["reached_ms"] - AHEAD_MS:  # corrected while no process ran
                steps, relived_ms = steps + 1, max(relived_ms, newest["reached_ms"] + 60_000)
            else:
                self._looks.set_forward(newest["reached_ms"] - newest["held_ms"])
        self._start_ms = self.now_ms // self.rules.tick_ms * self.rules.tick_ms
        """What passes while monitors are being loaded is missed, also at a first start."""
        self.expectation.start(
            self.now_ms, newest["mark_ms"] if newest else self._start_ms, steps, relived_ms, settled_ms
        )
        self.expectation.first_start = newest is None
        self._known_entries = newest["entries"] if newest else {}
        self._started = True

    def _load_entries(self) -> None:
        self._entries_loaded = True
        for name, entry in self.entries.items():
            known = self._known_entries.get(name)
            self.expectation.load(entry._replace(effective_from_ms=known[1] if known else self.now_ms))

    def _edit_entries(self) -> None:
        for job_id, job in self._entry_edits.items():
            if job is None:
                self.expectation.delete(job_id)
            else:
                self.expectation.put(job._replace(effective_from_ms=self.now_ms))
            self._touched_off.add(job_id)
            self._lift(job_id)
        self._entry_edits.clear()

    def _same_arming(self, sent: Job) -> bool:
        job = self.expectation.jobs.get(sent.id)
        return job is not None and job.arming == sent.arming

    def _check_lateness(self, run: Offered, job: Job, confirmed_ms: int) -> None:
        late_ms = confirmed_ms - run.fire_ms
        if self.calm_for(late_ms + 5_000) and self.fates.was_due(run) and self._has_room(job):
            demand(late_ms <= LATENESS_MS, "while nothing is wrong, runs are on time", run=run, late_ms=late_ms)

    def _has_room(self, job: Job) -> bool:
        """Whether neither a late definition nor a narrow window explains a late run."""
        return job.plan.kind != "once" and self.supervision._settings.window > 100

    def _check_once(self, broker: SimBroker) -> None:
        """A once that was due in its time has run, and is finished."""
        sent = {(message.job_id, message.fire_ms) for message in broker.messages}
        for row in self.table.rows.values():
            plan = plan_of(row)
            at_ms = plan.phase_ms
            if plan.kind != "once" or not row.enabled or row.misfire == "skip":
                continue
            if (row.id, at_ms) in self.given_up:
                continue
            if at_ms <= self.now_ms - 10_000:
                demand((row.id, at_ms) in sent, "a once runs late rather than never", row=row)
                demand(row.finished_at_ms is not None, "a once that ran is finished", row=row)

    def _check_account(self, waiting: set[Offered]) -> None:
        seen = self.beat.engine.ledger
        reasons = {reason: seen.skipped[reason] - self._ledger[reason] for reason in seen.skipped}
        for name, now in (("expected", seen.expected), ("sent", seen.sent), ("reoffered", seen.reoffered)):
            reasons_delta = now - self._ledger[name]
            wanted = {"expected": self.expectation.expected, "sent": self.fates.sent, "reoffered": self.fates.again}
            demand(reasons_delta == wanted[name], "the ledger counts what happened", name=name, ledger=reasons_delta,
                   counted=wanted[name])  # fmt: skip
        exact = self.expectation.skipped + self._failed_now
        for reason in ("restart", "stall", "clock", "error", "unroutable", "shutdown"):
            demand(reasons[reason] == exact[reason], "a run is skipped for the right reason", reason=reason,
                   ledger=reasons[reason], counted=exact[reason])  # fmt: skip
        now_s = self.clock.monotonic_s()
        situation = Situation(
            jobs=self.expectation.jobs,
            touched_off=self._touched_off,
            poisoned=self._poisoned,
            finished=self._finished_now,
            down=self._connected_s is None or now_s - self._connected_s > 1.0,
        )
        problem = self.fates.reconcile(waiting, situation, reasons)
        self.given_up |= self.fates.crowded_out
        demand(
            problem is None, "a run leaves with a reason that its situation allows", problem=problem, skipped=reasons
        )
        self._ledger = Counter(
            {**seen.skipped, "expected": seen.expected, "sent": seen.sent, "reoffered": seen.reoffered}
        )
        self.expectation.expected = self.fates.sent = self.fates.again = 0
        self.expectation.skipped.clear()
        self._failed_now.clear()
        self._touched_off.clear()
        self._finished_now.clear()

    def _check_mark(self) -> None:
        mark_ms = self.beat.mark.mark_ms
        if mark_ms is None or self.beat.state != "running":
            return
        demand(mark_ms <= max(self.expectation.cursor_ms, self.expectation.mark_ms or 0), "the mark never runs ahead",
               mark_ms=mark_ms, cursor_ms=self.expectation.cursor_ms)  # fmt: skip
        repeating = (run for run, _ in self.fates.unsettled() if not self.fates.is_of_once(run))
        oldest = min((run.fire_ms for run in repeating), default=None)
        if oldest is not None and self._looks.motion is not Motion.BACK:
            demand(mark_ms < oldest, "the mark stays before what is not settled",
                   mark_ms=mark_ms, oldest=oldest)  # fmt: skip
        settled_ms = self.beat.mark.settled_until_ms
        again = [run for run, job in self.fates.unsettled() if job and job.plan.kind == "cron" and not run.reoffered]
        if self._looks.motion is not Motion.BACK:
            demand(all(run.fire_ms > settled_ms or run.step for run in again),
                   "waiting runs are not reported as settled", settled_ms=settled_ms, waiting=again)  # fmt: skip
        stored_now = self.table.beats.get(self.supervision.beat_id)
        document = json.loads(stored_now["marks"]).get("broker") if stored_now else None
        if document is not None and document["steps"] == self.expectation.step:  # written by the clock of now
            shards = len(self.beat.engine.shards)
            untrue = [
                run
                for run, _ in self.fates.unsettled()
                if not self.fates.is_of_once(run) and mark_of(document, run.job_id % shards) >= run.fire_ms
            ]
            demand(not untrue, "a stored mark is true for its shard", untrue=untrue, document=document)
        if self.overdue():
            self._behind_ms = self.clock.elapsed_ms
        if self.calm_for(70_000) and self.clock.elapsed_ms - self._behind_ms > MARK_AGE_MS:
            stored = max(
                (json.loads(row["marks"]).get("broker", {}).get("mark_ms", 0) for row in self.table.beats.values()),
                default=0,
            )
            bound_ms = min(self.now_ms, oldest or self.now_ms) - MARK_AGE_MS
            demand(stored >= bound_ms, "the stored mark is fresh", stored=stored, now_ms=self.now_ms)

    def _check_bounds(self) -> None:
        backlog = self.beat.dispatcher
        demand(backlog.waiting <= 2 * self.rules.backlog_max, "the backlog is bounded", waiting=backlog.waiting)


def mark_of(document: Mapping[str, Any], shard: int) -> int:
    """Return what a stored document says of one shard."""
    said = document.get("shards")
    if not said:
        return int(document["mark_ms"])
    behind = [mark for mask, mark in said["behind"].items() if int(mask, 16) >> shard & 1]
    return min([said["mark_ms"], *behind])


def latest_of(document: Mapping[str, Any]) -> int:
    """Return the latest mark of a stored document."""
    said = document.get("shards")
    return max(int(document["mark_ms"]), said["mark_ms"]) if said else int(document["mark_ms"])


def run_id(key: str, run: Offered) -> str:
    """Return the id of a run by the published formula, with the standard library."""
    namespace = uuid.uuid5(uuid.NAMESPACE_URL, "celery-wheelbeat:simulated")
    return str(uuid.uuid5(namespace, f"{key}@{run.fire_ms}" + (f"~{run.step}" if run.step > 0 else "")))


def _waiting(backlog: Any) -> set[Offered]:
    chunks = [*backlog._offered, *backlog._late.chunks(), *backlog._fresh.chunks()]
    return {
        Offered(job_id, fire_ms, tag >> STEP_SHIFT, bool(tag & REOFFERED))
        for pairs in chunks
        for job_id, fire_ms, tag in zip(pairs.ids.tolist(), pairs.fire_ms.tolist(), pairs.tag.tolist(), strict=True)
    }


def _deferred(lane: Any) -> set[Offered]:
    return {Offered(run.job_id, run.fire_ms, run.step, run.reoffered) for run in lane.backlog._deferred}
