"""Executions that may outlast their claims, and discarded messages, as a worker's main process judges them."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from celery_wheelbeat.errors import ClaimStoreDown
from celery_wheelbeat.settings import Settings
from celery_wheelbeat.worker.claims import State
from celery_wheelbeat.worker.counters import Counters
from celery_wheelbeat.worker.hooks.revocations import Revocations, guard_results
from celery_wheelbeat.worker.lifecycle.admission import Gate
from celery_wheelbeat.worker.lifecycle.executions import Executions
from celery_wheelbeat.worker.stores.choice import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery_wheelbeat.worker.stores import Store

NOW_MS = 1_800_000_000_000
TTL_S = 600
TURN_S = 10


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Claims in a file."""
    store = open_store(f"sqlite:///{tmp_path}/claims.sqlite3")
    store.prepare()
    yield store
    store.close()


@pytest.fixture
def gate(store: Store) -> Gate:
    """A gate before those claims."""
    return Gate(store, Settings(), Counters(), flags_redelivery=True, wall_ms=lambda: NOW_MS)


class Delivered:
    """What is needed of Celery's request: it can be referred to weakly."""

    def __init__(self, task_id: str = "id", *, args: tuple[Any, ...] = (1,), key: str = "id", **headers: Any) -> None:
        self.id, self.args, self.kwargs = task_id, args, {}
        self.task = SimpleNamespace(name="t", acks_late=True, time_limit=None, wheelbeat={"key": key})
        ours = {"wheelbeat_fire_ms": NOW_MS, "wheelbeat_nonce": "n", "wheelbeat_claim_ttl": TTL_S}
        self.request_dict = {"task": "t", "args": args, "kwargs": {}, **ours, **headers}


def admitted(gate: Gate, request: Delivered) -> bool:
    """Let the message through the gate; say whether it may execute."""
    return (
        gate.admit(request.task, request.id, request.args, request.kwargs, dict(request.request_dict)).refusal is None
    )


def test_an_execution_is_due_after_a_third_of_its_claim_and_then_every_third(gate: Gate) -> None:
    executions, request = Executions(gate), Delivered()
    due_at_s = [
        now_s for now_s in range(0, 2 * TTL_S, TURN_S) if executions.due([request], float(now_s), float(TURN_S))
    ]
    assert due_at_s[0] + TURN_S <= TTL_S / 3  # it may have begun just after the turn before the first
    assert [later - earlier for earlier, later in pairwise(due_at_s)] == [TTL_S / 3] * 5


def test_a_claim_is_never_shorter_than_a_lease_in_which_the_keeper_looks_three_times(gate: Gate) -> None:
    executions, request = Executions(gate), Delivered(wheelbeat_claim_ttl=1)
    due = [now_s for now_s in range(0, 100, TURN_S) if executions.due([request], float(now_s), float(TURN_S))]
    assert due == list(range(0, 100, TURN_S))
    [execution] = executions.due([request], 100.0, float(TURN_S))
    assert execution.ttl_s == 30


def test_what_is_not_ours_is_never_due(gate: Gate) -> None:
    foreign, odd = Delivered(), Delivered(wheelbeat_claim_ttl="long")
    del foreign.request_dict["wheelbeat_fire_ms"]
    assert not any(Executions(gate).due([foreign, odd], float(now_s), 1.0) for now_s in range(0, 3_000, 100))


@pytest.mark.parametrize("key", ["id", "content"])
def test_the_claim_that_is_prolonged_is_the_one_that_the_gate_made(gate: Gate, store: Store, key: str) -> None:
    first, other = Delivered(key=key), Delivered(args=(2,), key=key, wheelbeat_nonce="other")
    assert admitted(gate, first)
    assert admitted(gate, other)  # the same id and fire time, other arguments
    executions = Executions(gate)
    executions.due([first, other], 0.0, 1.0)
    due = executions.due([first, other], float(TTL_S), 1.0)
    assert [execution.request for execution in due] == [first, other]
    for execution in due:
        assert any(store.prolong(claim, execution.nonce, TTL_S) for claim in execution.claims())
    copy = Delivered(key=key, wheelbeat_nonce="a copy")
    [execution] = Executions(gate).due([copy], float(TTL_S), float(TTL_S))
    assert not any(store.prolong(claim, execution.nonce, TTL_S) for claim in execution.claims())


def test_only_a_copy_and_what_has_ended_are_discarded_without_a_trace(gate: Gate, store: Store) -> None:
    revocations = Revocations(gate)

    def is_copy(request: Delivered) -> bool:
        return revocations.concern_a_copy(request.task, request.id, request.request_dict)

    elected, copy = Delivered(), Delivered(wheelbeat_nonce="a copy")
    another = Delivered(args=(2,), wheelbeat_nonce="another task's")
    assert not is_copy(elected), "nothing is known of the run"
    admission = gate.admit(elected.task, "id", elected.args, {}, dict(elected.request_dict))
    assert not is_copy(elected), "it is terminated while it runs"
    assert is_copy(copy)
    assert not is_copy(another)
    assert not is_copy(Delivered(wheelbeat_claim_ttl="long"))
    gate.settle(admission, "SUCCESS")
    assert is_copy(elected), "only its acknowledgement was lost"
    assert admitted(gate, another)
    assert is_copy(Delivered(args=(2,), wheelbeat_nonce="a copy of that"))
    assert store.mark(admission.key, admission.execution, State.SKIPPED)
    assert is_copy(elected)


class Backend:
    """Writes down what would be stored."""

    def __init__(self) -> None:
        self.stored: list[str] = []

    def mark_as_revoked(
        self, task_id: str, reason: str = "", request: Any = None, store_result: bool = True, state: str = "REVOKED"
    ) -> None:
        if store_result:
            self.stored.append(f"{task_id} {state} {reason}")


def test_a_store_that_is_away_leaves_it_to_celery_and_is_not_asked_for_every_message(gate: Gate) -> None:
    class Away:
        asked = 0

        def read(self, _key: str) -> None:
            self.asked += 1
            raise ClaimStoreDown("away")

    away = Away()
    gate.store = away  # type: ignore[assignment]
    backend = Backend()
    task = SimpleNamespace(name="t", acks_late=True, time_limit=None, backend=backend)
    for _ in range(2):
        guard_results({"t": task}, Revocations(gate))
    for number in range(3):
        backend.mark_as_revoked(str(number), "expired", request=SimpleNamespace(**Delivered().request_dict))
    backend.mark_as_revoked("3", "revoked")
    assert backend.stored == [*(f"{number} REVOKED expired" for number in range(3)), "3 REVOKED revoked"]
    assert away.asked == 1
