"""Whatever the headers of a message say: it harms no other message, and is executed as Celery would execute it."""

from __future__ import annotations

import logging
import math
import sys
from contextlib import closing
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from celery.app.task import Context
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_wheelbeat.settings import Settings
from celery_wheelbeat.worker.counters import Counters
from celery_wheelbeat.worker.hooks.revocations import Revocations
from celery_wheelbeat.worker.lifecycle import admission as gate_module
from celery_wheelbeat.worker.lifecycle.admission import Gate
from celery_wheelbeat.worker.lifecycle.deaths import Deaths
from celery_wheelbeat.worker.lifecycle.deliveries import Deliveries
from celery_wheelbeat.worker.lifecycle.executions import Executions
from celery_wheelbeat.worker.stores.choice import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from celery_wheelbeat.worker.stores import Store

NOW_MS = 1_800_000_000_000

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**63), 2**64),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=30),
    st.sampled_from(
        ["", "\0", "\r\n", "é" * 5_000, "9" * 5_000, "1e400", "\ud800", "0x10", "-1", "true", b"\xff", b"1"]
    ),
    st.sampled_from([math.inf, -math.inf, 10**400, datetime(2027, 1, 1, tzinfo=UTC), "9999-12-31T23:59:59"]),
)
ODD = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = (
    "wheelbeat_fire_ms", "wheelbeat_nonce", "wheelbeat_overlap", "wheelbeat_job", "wheelbeat_claim_ttl",
    "wheelbeat_waiting", "wheelbeat_delivery", "wheelbeat_node", "wheelbeat_fence", "periodic_task_name",
    "celery_beat_task", "retries", "eta", "expires", "replaced_task_nesting", "timelimit", "x-death",
)  # fmt: skip
USUAL = {"wheelbeat_fire_ms": NOW_MS, "wheelbeat_nonce": "0f" * 16, "periodic_task_name": "m", "retries": 0}
HEADERS = st.dictionaries(st.sampled_from(NAMES), ODD, max_size=3).map(lambda odd: {**USUAL, **odd})
"""A few odd ones: a message in which everything is odd is refused for the first of them."""
IDS = st.text(max_size=40) | st.sampled_from(["x" * 10_000, "\0", "a\0b", "\ud800", "é\n\x1b[31m"])


class Request:
    """What is needed of Celery's request: it can be referred to weakly."""

    def __init__(self, task_id: str, task: Any, args: Any, headers: Mapping[str, Any]) -> None:
        self.id, self.task, self.args, self.kwargs, self.hostname = task_id, task, args, {}, "celery@here"
        self.app = SimpleNamespace(amqp=SimpleNamespace(queues=SimpleNamespace(consume_from={})))
        self.delivery_info = {"exchange": "", "routing_key": "q", "redelivered": False}
        self.request_dict = {
            **headers,
            "task": task.name,
            "args": args,
            "kwargs": {},
            "delivery_info": self.delivery_info,
        }


@pytest.fixture(autouse=True, scope="module")
def _no_log_lines() -> Iterator[None]:
    """Drop log lines: they hold half surrogates, which a report to another test process cannot carry."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Claims in a file."""
    with closing(open_store(f"sqlite:///{tmp_path_factory.mktemp('claims')}/claims.sqlite3")) as store:
        store.prepare()
        yield store


@settings(max_examples=40)
@pytest.mark.parametrize("choices", [{}, {"exclusive": True}, {"key": "content"}, {"overlap": "queue_one"}])
@given(headers=HEADERS, task_id=IDS, arguments=st.lists(ODD, max_size=2))
def test_a_message_is_executed_and_its_neighbour_too(
    store: Store, choices: dict[str, Any], headers: dict[str, Any], task_id: str, arguments: list[Any]
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        unexpected: list[Any] = []
        patched.setattr(gate_module, "publish_again", lambda *_: None)
        patched.setattr(gate_module.logger, "exception", lambda *_: unexpected.append(sys.exception()))
        store._execute("DELETE FROM wheelbeat_claim")
        store._execute("DELETE FROM wheelbeat_lease")
        counters = Counters()
        gate = Gate(store, Settings(), counters, flags_redelivery=True, wall_ms=lambda: NOW_MS)
        task = SimpleNamespace(name="t", acks_late=True, time_limit=None, wheelbeat=choices)
        neighbour = SimpleNamespace(name="neighbour", acks_late=True, time_limit=None)
        request = Request(task_id, task, arguments, headers)
        deliveries = Deliveries()
        deliveries.receive(gate, request)

        admission = gate.admit(task, task_id, arguments, {}, dict(request.request_dict))

        assert admission.refusal is None, "nothing was known of this run"
        assert unexpected == []
        gate.settle(admission, "SUCCESS")
        deliveries.executing([request])
        for execution in Executions(gate).due([request], 1e9, 1e9):
            assert all(len(key) == 32 for key in execution.claims())
        Deaths(gate).note(task, task_id, vars(Context(request.request_dict)))
        Revocations(gate).concern_a_copy(task, task_id, vars(Context(request.request_dict)))
        # under the same id, and at the same fire time, another run is executed all the same
        ours = {"wheelbeat_fire_ms": headers["wheelbeat_fire_ms"], "wheelbeat_nonce": "ours", "retries": 0}
        assert gate.admit(neighbour, task_id, [1], {}, ours).refusal is None
        counted = counters.totals()
        assert not any(counted[name] for name in ("outage_open", "outage_closed", "marks_lost", "dropped_other"))


def test_an_error_in_the_gate_costs_the_claim_and_never_the_run(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.ERROR)

    def broken(*_: Any) -> None:
        raise LookupError("of ours")

    gate = Gate(store, Settings(), Counters(), flags_redelivery=True, wall_ms=lambda: NOW_MS)
    task = SimpleNamespace(name="t", acks_late=True, time_limit=None)
    monkeypatch.setattr(store, "claim", broken)
    admission = gate.admit(task, "id", (), {}, {"wheelbeat_fire_ms": NOW_MS})
    assert (admission.refusal, admission.execution) == (None, "")
    assert "t[id] runs without a claim" in caplog.text
    assert "of ours" in caplog.text
