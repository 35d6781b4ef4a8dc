"""What becomes of a message, by how far its run is: each row of the table in the docs, through the gate of a worker.

The same with real workers and brokers: ``tests/acceptance/test_claims_*.py``.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from celery.exceptions import Ignore
from celery.states import FAILURE, IGNORED, REJECTED, RETRY, SUCCESS
from hypothesis import given
from hypothesis import strategies as st

from celery_wheelbeat.settings import Settings
from celery_wheelbeat.worker.claims import Claim, ClaimRequest, State, decide, state_after
from celery_wheelbeat.worker.counters import Counters
from celery_wheelbeat.worker.lifecycle import admission as gate_module
from celery_wheelbeat.worker.lifecycle.admission import Gate
from celery_wheelbeat.worker.lifecycle.deaths import Deaths, guard_failures
from celery_wheelbeat.worker.stores.choice import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from celery_wheelbeat.worker.stores import Store

PAGE = Path(__file__).parents[2] / "docs/explanation/guarantees-of-runs.md"
NOW_MS = 1_800_000_000_000
FIRST = {"wheelbeat_fire_ms": NOW_MS, "wheelbeat_nonce": "a", "retries": 0}
NOT_YET, KILLED, SKIPPED, NEVER = "not yet", "killed", "skipped", "never"
"""Ends of the first execution beside Celery's states."""

REDELIVERED = {"delivery_info": {"redelivered": True}}
DEAD_LETTER = {"x-death": [{"reason": "expired", "count": 1}, {"reason": "rejected", "count": 1}]}
BEYOND_THE_LIMIT = {"x-death": [{"reason": "delivery_limit", "count": 1}]}
PUBLISHED_AGAIN: Mapping[str, Any] = {}
BACK = (REDELIVERED, DEAD_LETTER, BEYOND_THE_LIMIT, PUBLISHED_AGAIN)
COPY = {"wheelbeat_nonce": "b"}
COPIES = tuple({**COPY, **back} for back in BACK)
ENDS = (SUCCESS, RETRY, FAILURE, REJECTED, IGNORED, KILLED, SKIPPED, NOT_YET)


class Row(NamedTuple):
    """A row of the table, and what is tried for it."""

    run: str
    message: str
    then: str
    ends: tuple[str, ...]
    """How far the run is: any of these."""
    messages: tuple[Mapping[str, Any], ...]
    """In which its second message differs from the first: any of these."""
    outcome: str
    """``runs``, or what the log says."""
    counter: str = ""


ROWS = [
    Row("not known", "any of its messages", "runs (`elected`)", (NEVER,), (*BACK, *COPIES), "runs", "elected"),
    Row(
        "another message was elected",
        "a copy: same run, other nonce",
        "dropped (`other`), regardless of how the elected message ends",
        ENDS,
        COPIES,
        "dropped (other)",
        "dropped_other",
    ),
    Row(
        "another message was elected",
        "same id and fire time, but another job, another task or other arguments",
        "runs, with a warning (`unlike`)",
        ENDS,
        ({**COPY, "args": (2,)}, {**COPY, "periodic_task_name": "another"}),
        "runs",
        "unlike",
    ),
    Row(
        "has succeeded",
        "its message again: redelivered, from a queue of dead letters, or published again",
        "dropped (`finished`)",
        (SUCCESS,),
        BACK,
        "dropped (finished)",
        "dropped_finished",
    ),
    Row(
        "ended in a retry",
        "its message again",
        "dropped (`finished`): the next attempt was published before",
        (RETRY,),
        BACK,
        "dropped (finished)",
        "dropped_finished",
    ),
    Row(
        "was skipped, because of overlap or `stale`",
        "its message again",
        "dropped (`finished`)",
        (SKIPPED,),
        BACK,
        "dropped (finished)",
        "dropped_finished",
    ),
    Row(
        "failed, also by its soft time limit",
        "its message: redelivered, from a queue of dead letters, or published again",
        "runs (`reopened`)",
        (FAILURE,),
        BACK,
        "runs",
        "reopened",
    ),
    Row(
        "was given back by its task (`Reject`), or left to it (`Ignore`)",
        "its message, as above",
        "runs (`reopened`)",
        (REJECTED, IGNORED),
        BACK,
        "runs",
        "reopened",
    ),
    Row(
        "its pool process was killed, or exceeded the hard time limit",
        "its message, as above",
        "runs (`reopened`)",
        (KILLED,),
        BACK,
        "runs",
        "reopened",
    ),
    Row(
        "executes, or its worker died",
        "its message, redelivered: the worker or its connection died, a time-out has passed, Celery put it back",
        "runs (`taken_over`)",
        (NOT_YET,),
        (REDELIVERED,),
        "runs",
        "taken_over",
    ),
    Row(
        "executes, or its worker died",
        "its message from a dead-letter queue, after a rejection or beyond a delivery limit",
        "runs (`taken_over`)",
        (NOT_YET,),
        (DEAD_LETTER, BEYOND_THE_LIMIT),
        "runs",
        "taken_over",
    ),
    Row(
        "executes, or its worker died",
        "its message, not marked as delivered before",
        "waits until the outcome is known: dropped after a success, runs after another end or when the claim expires",
        (NOT_YET,),
        (PUBLISHED_AGAIN, {"x-death": [{"reason": "expired", "count": 1}]}),
        "waits",
        "waited",
    ),
    Row(
        "executes, or its worker died, and it needs a lease",
        "its message again",
        "waits for the lease, which the running execution holds; then runs, or is dropped after a success",
        (NOT_YET,),
        tuple({**back, "exclusive": True} for back in BACK),
        "waits",
        "waited",
    ),
]


class Bench:
    """A gate before claims in a file, and a task that the messages are for."""

    def __init__(self, store: Store) -> None:
        self.counters = Counters()
        self.gate = Gate(store, Settings(), self.counters, flags_redelivery=True, wall_ms=lambda: NOW_MS)
        self.deliveries = 0

    def message(self, differences: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request of a message as a worker's main process hands it to the pool."""
        self.deliveries += 1
        delivery = {**differences.get("delivery_info", {}), "wheelbeat_delivery": f"here-{self.deliveries}"}
        return {"args": (1,), "kwargs": {}, **FIRST, **differences, "delivery_info": delivery}

    def task(self, differences: Mapping[str, Any]) -> Any:
        """Return the task, exclusive where the message says so: a shorthand of these tests."""
        choices = {"exclusive": bool(differences.get("exclusive"))}
        name = f"t{choices['exclusive']:d}"
        return SimpleNamespace(name=name, acks_late=True, time_limit=None, wheelbeat=choices)

    def bring_to(self, end: str, differences: Mapping[str, Any]) -> None:
        """Let the first message be elected and come to ``end``."""
        if end == NEVER:
            return
        task, request = self.task(differences), self.message({})
        admission = self.gate.admit(task, "id", request["args"], request["kwargs"], request)
        assert admission.refusal is None
        match end:
            case "killed":
                Deaths(self.gate).note(task, "id", request)
            case "skipped":
                self.gate.store.mark(admission.key, admission.execution, State.SKIPPED)
            case "not yet":
                pass
            case state:
                self.gate.settle(admission, state)

    def outcome(self, differences: Mapping[str, Any]) -> str:
        """Let a second message through the gate; say what becomes of it."""
        request = self.message(differences)
        refusal = self.gate.admit(self.task(differences), "id", request["args"], request["kwargs"], request).refusal
        assert refusal is None or isinstance(refusal, Ignore)
        return "runs" if refusal is None else str(refusal.args[0])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Claims in a file."""
    store = open_store(f"sqlite:///{tmp_path}/claims.sqlite3")
    store.prepare()
    yield store
    store.close()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.run}, {row.message}")
def test_each_row_of_the_table(row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[Any] = []
    monkeypatch.setattr(gate_module, "publish_again", lambda *message: published.append(message))
    for number, (end, differences) in enumerate((end, message) for end in row.ends for message in row.messages):
        store = open_store(f"sqlite:///{tmp_path}/{number}.sqlite3")
        store.prepare()
        bench = Bench(store)
        bench.bring_to(end, differences)
        before = bench.counters.totals()
        assert bench.outcome(differences) == row.outcome, (end, differences)
        assert bench.counters.totals()[row.counter] == before[row.counter] + 1, (end, differences)
        store.close()
    assert bool(published) is (row.outcome == "waits")


def test_the_docs_have_these_rows_and_no_others() -> None:
    lines = PAGE.read_text().split("| the run | what arrives | then |\n")[1].splitlines()[1:]
    table = [line for line in lines[: lines.index("")] if line.startswith("|")]
    assert table == [f"| {row.run} | {row.message} | {row.then} |" for row in ROWS]


def test_the_rows_leave_nothing_out() -> None:
    tried = {(end, str(message)) for row in ROWS for end in row.ends for message in row.messages}
    assert {(end, str(message)) for end in ENDS for message in (*BACK, *COPIES)} <= tried


@pytest.mark.parametrize("end", [None, "a state of a later Celery", *ENDS[:5]])
def test_only_a_success_and_a_retry_are_final(end: str | None) -> None:
    assert state_after(end) is (State.DONE if end in (SUCCESS, RETRY) else State.OPEN)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.booleans(), st.booleans(), st.sampled_from([*ENDS[:5], None, NOT_YET])),
        min_size=1,
        max_size=40,
    )
)
def test_whatever_happens_the_elected_message_is_dropped_only_after_its_run_has_ended_well(
    arrivals: list[tuple[str, bool, bool, str | None]],
) -> None:
    held: Claim | None = None
    ended_well = False
    for number, (nonce, redelivered, may_take_over, end) in enumerate(arrivals):
        asked = ClaimRequest(nonce, f"e{number}", "d", redelivered, may_take_over)
        verdict = decide(held, asked)
        if verdict.drops:
            assert nonce != arrivals[0][0] or ended_well
        if verdict.runs:
            assert nonce == arrivals[0][0]
            assert not ended_well
            state = State.RUNNING if end == NOT_YET else state_after(end)
            held = Claim(state, nonce, asked.execution, asked.digest, 0)
            ended_well = state is State.DONE


def test_what_waited_runs_when_its_claim_has_expired_and_is_dropped_after_a_success(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[Any] = []
    monkeypatch.setattr(gate_module, "publish_again", lambda *message: published.append(message))
    bench = Bench(store)
    bench.bring_to(NOT_YET, {})
    waiting = {"wheelbeat_waiting": True}
    assert [bench.outcome(PUBLISHED_AGAIN), bench.outcome(waiting), bench.outcome(waiting)] == ["waits"] * 3
    assert [message[-1] for message in published] == [5.0] * 3
    store._execute("UPDATE wheelbeat_claim SET expires_ms = 1")
    assert bench.outcome(waiting) == "runs"
    store._execute("UPDATE wheelbeat_claim SET state = 'D'")
    assert bench.outcome(waiting) == "dropped (finished)"


def test_a_worker_of_a_broadcast_does_not_take_it_from_another(store: Store) -> None:
    bench = Bench(store)
    here, there = ({"delivery_info": {"wheelbeat_node": f"celery@{name}"}} for name in ("here", "there"))
    assert [bench.outcome({**COPY, **node}) for node in (here, there)] == ["runs"] * 2
    assert [bench.outcome(node) for node in (here, there)] == ["dropped (other)"] * 2


@pytest.mark.parametrize("odd", ["rejected", 7, None, {}, [None], [{}], ["rejected"], [{"reason": ["rejected"]}]])
def test_a_history_of_dead_letters_that_is_invented_is_ignored(odd: object, store: Store) -> None:
    bench = Bench(store)
    assert bench.outcome({"x-death": odd}) == "runs"
    assert bench.counters.totals()["elected"] == 1


def test_of_two_ends_that_nobody_noted_only_the_one_that_holds_the_claim_opens_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_module, "publish_again", lambda *_: None)
    bench = Bench(store)
    task, deaths = bench.task({}), Deaths(bench.gate)
    killed, living = bench.message({}), bench.message(REDELIVERED)
    for request in (killed, living):
        assert bench.gate.admit(task, "id", (1,), {}, request).refusal is None
    deaths.note(task, "id", killed)
    assert bench.outcome(PUBLISHED_AGAIN) == "waits"
    deaths.note(task, "id", living)
    assert bench.outcome(PUBLISHED_AGAIN) == "runs"
    for odd in ({"wheelbeat_fire_ms": "noon"}, {"wheelbeat_fire_ms": NOW_MS, "retries": "many"}):
        deaths.note(task, "id", odd)


class Backend:
    """A result backend."""

    def __init__(self) -> None:
        self.failed: list[Any] = []

    def mark_as_failure(self, task_id: str, exc: Any, traceback: Any = None, request: Any = None, **_: Any) -> str:
        self.failed.append((task_id, exc, traceback, request))
        return "stored"


def test_the_main_process_notes_what_no_pool_process_can_and_stores_every_failure() -> None:
    from billiard.exceptions import TimeLimitExceeded, WorkerLostError

    noted: list[str] = []
    task = SimpleNamespace(name="t", backend=Backend())
    deaths = SimpleNamespace(note=lambda _, task_id, __: noted.append(task_id))
    for _ in range(2):
        guard_failures({"t": task}, deaths)
    ours = SimpleNamespace(task="t", wheelbeat_fire_ms=1)
    ends = [
        ("killed", WorkerLostError(), ours),
        ("timed out", TimeLimitExceeded(1), ours),
        ("failed", RuntimeError(), ours),
        ("of nobody", WorkerLostError(), SimpleNamespace(task="t")),
        ("unknown", WorkerLostError(), SimpleNamespace(task="u", wheelbeat_fire_ms=1)),
        ("without a request", WorkerLostError(), None),
    ]
    for task_id, error, request in ends:
        assert task.backend.mark_as_failure(task_id, error, "traceback", request=request) == "stored"
    assert noted == ["killed", "timed out"]
    assert task.backend.failed == [(task_id, error, "traceback", request) for task_id, error, request in ends]
