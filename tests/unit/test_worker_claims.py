"""The pure decisions of the worker side: who is elected, who waits, what a task may choose."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_wheelbeat.dispatch.messages.claim_headers import claim_ttl_s, worker_headers
from celery_wheelbeat.errors import InvalidSetting
from celery_wheelbeat.settings import Settings
from celery_wheelbeat.worker.claims import (
    Claim,
    ClaimRequest,
    State,
    Verdict,
    claim_key,
    content_id,
    decide,
    digest_of,
    nonce_token,
)
from celery_wheelbeat.worker.headers import RunHeaders
from celery_wheelbeat.worker.lifecycle.breaker import Breaker
from celery_wheelbeat.worker.lifecycle.rate import ClaimRate
from celery_wheelbeat.worker.overlap import Contention, contend, lease_name
from celery_wheelbeat.worker.policy import Policy

HELD = Claim(State.RUNNING, "n1", "e1", "d1", started_ms=0)


def ask(nonce: str = "n1", execution: str = "e2", digest: str = "d1", **more: Any) -> ClaimRequest:
    """What a second execution asks, in variations."""
    return ClaimRequest(nonce, execution, digest, **{"redelivered": False, **more})


@pytest.mark.parametrize(
    ("held", "asked", "verdict"),
    [
        (None, ask(), Verdict.ELECTED),
        (None, ask(redelivered=True), Verdict.ELECTED),
        (HELD, ask("n2"), Verdict.OTHER),
        (HELD, ask("n2", redelivered=True), Verdict.OTHER),
        (HELD._replace(state=State.OPEN), ask("n2"), Verdict.OTHER),
        (HELD._replace(state=State.DONE), ask("n2"), Verdict.OTHER),
        (HELD, ask("n2", digest="d2"), Verdict.UNLIKE),
        (HELD, ask(execution="e1"), Verdict.MINE),
        (HELD._replace(state=State.DONE), ask(execution="e1"), Verdict.MINE),
        (HELD, ask(redelivered=True), Verdict.TAKEN_OVER),
        (HELD, ask(redelivered=True, digest="d2"), Verdict.TAKEN_OVER),
        (HELD, ask(redelivered=True, may_take_over=False), Verdict.HELD),
        (HELD, ask(may_take_over=False), Verdict.HELD),
        (HELD, ask(), Verdict.TWIN),
        (HELD, ask("n2", digest="d1 and more"), Verdict.OTHER),  # of an older release, which keeps half of a digest
        (HELD._replace(state=State.OPEN), ask(), Verdict.REOPENED),
        (HELD._replace(state=State.OPEN), ask(may_take_over=False), Verdict.REOPENED),
        (HELD._replace(state=State.DONE), ask(redelivered=True), Verdict.FINISHED),
        (HELD._replace(state=State.DONE), ask(), Verdict.FINISHED),
    ],
)
def test_the_state_table(held: Claim | None, asked: ClaimRequest, verdict: Verdict) -> None:
    assert decide(held, asked) is verdict


def test_a_verdict_runs_or_drops_or_asks_further() -> None:
    for verdict in Verdict:
        assert verdict.runs + verdict.drops + (verdict in (Verdict.HELD, Verdict.TWIN, Verdict.UNLIKE)) == 1


@given(st.lists(st.tuples(st.sampled_from(["n1", "n2", "n3"]), st.booleans()), min_size=1, max_size=30))
def test_whatever_arrives_only_one_nonce_ever_runs(arrivals: list[tuple[str, bool]]) -> None:
    held: Claim | None = None
    ran = set()
    for number, (nonce, redelivered) in enumerate(arrivals):
        asked = ask(nonce, f"e{number}", redelivered=redelivered)
        if decide(held, asked).runs:
            held = Claim(State.RUNNING, nonce, asked.execution, asked.digest, 0)
            ran.add(nonce)
    assert ran == {arrivals[0][0]}


def test_attempts_have_claims_of_their_own() -> None:
    keys = {claim_key("id", fire_ms, nesting, retries) for fire_ms, nesting, retries in product((1, 2), (0, 1), (0, 1))}
    assert len(keys) == 8
    assert all(len(bytes.fromhex(key)) == 16 for key in keys)
    assert claim_key("id", 1, 0, 0) != claim_key("id", 1, 0, 0, "apart")


def test_a_digest_tells_tasks_and_arguments_apart_and_survives_what_json_brings() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert digest_of("t", (1,), {"a": 1, "b": 2}) == digest_of("t", [1], {"b": 2, "a": 1})
    assert digest_of("t", (1,), {}) != digest_of("u", (1,), {})
    assert digest_of("t", (1,), {}) != digest_of("t", (2,), {})
    assert digest_of("t", (moment, Decimal(1)), {}) == digest_of("t", (moment, Decimal(1)), {})
    # two copies of a pickled object are equal although their addresses differ
    assert digest_of("t", (object(),), {}) == digest_of("t", (object(),), {})
    assert digest_of("t", ({1: 2, "a": 3},), {}) == digest_of("t", ({1: 2, "a": 3},), {})
    assert len(content_id("t", (), {})) == 64


def test_a_digest_begins_as_that_of_an_older_release() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    frozen = {
        "08ac6646": ((1,), {"a": "é"}),
        "3aa8c4fd": ((moment, Decimal(1)), {}),
        "7a99d45f": (({1: 2, "a": {3}},), {}),
    }
    for half, (args, kwargs) in frozen.items():
        for job in ("", "nightly"):
            digest = digest_of("t", args, kwargs, job)
            assert digest[:8] == half
            assert len(digest) == 16


def test_nothing_that_somebody_else_may_send_has_the_digest_of_a_run() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    mine = digest_of("t", (moment, Decimal(1)), {}, "nightly")
    assert mine == digest_of("t", [moment, Decimal(1)], {}, "nightly")
    for args in ((repr(moment), Decimal(1)), (moment, repr(Decimal(1))), (repr(moment), repr(Decimal(1)))):
        assert digest_of("t", args, {}, "nightly") != mine
    assert digest_of("t", (moment, Decimal(1)), {}, "another") != mine
    assert digest_of("t", ("a",), {}, "bc") != digest_of("t", ("a",), {}, "b")


class Unfriendly:
    """What a pickled message may hold."""

    def __repr__(self) -> str:
        raise RuntimeError


DIGEST_OF_WHAT_PICKLE_BRINGS = """
from celery_wheelbeat.worker.claims import digest_of
class Address: pass
class Holder:
    def __repr__(self): return f"Holder({Address()!r})"
tags = {f"tag {number}" for number in range(50)}
print(digest_of("t", (tags, frozenset(tags), Holder()), {"nested": {1: [tags], "two": tags}}))
"""


def test_equal_arguments_have_one_digest_in_every_process() -> None:
    digests = set()
    for seed in ("1", "2"):  # of the order of sets, which each worker draws itself
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", DIGEST_OF_WHAT_PICKLE_BRINGS]
        digests.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(digests) == 1
    assert digest_of("t", ({1, 2},), {}) != digest_of("t", ({1, 3},), {})
    assert digest_of("t", ({1: {2}, "a": 3},), {}) != digest_of("t", ({1: {3}, "a": 3},), {})


def test_no_argument_is_too_odd_for_a_digest() -> None:
    circle: list[Any] = []
    circle += [circle, circle]
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    half_a_character = json.loads('"\\ud800"')
    for odd in (circle, deep, Unfriendly(), half_a_character, {1: half_a_character, "a": Unfriendly()}):
        assert digest_of("t", (odd,), {}) == digest_of("t", (odd,), {})
    assert claim_key(half_a_character, 1, 0, 0) != claim_key("?", 1, 0, 0)
    assert len(nonce_token(half_a_character)) == 16


def test_a_nonce_stays_readable_and_any_text_is_one() -> None:
    assert nonce_token("0123456789abcdef" * 2) == "0123456789abcdef"
    for odd in ("", "x", "0123456789ABCDEF" * 2, "é" * 40):
        assert len(bytes.fromhex(nonce_token(odd))) == 8
    assert nonce_token("x") != nonce_token("y")


def run_of(**more: Any) -> RunHeaders:
    """A run as the headers describe it."""
    request = {"wheelbeat_fire_ms": 5, "wheelbeat_nonce": "n", "wheelbeat_job": "ns/monitor:1", **more}
    return RunHeaders.read("id", request)


def test_headers_are_read_and_missing_ones_have_defaults() -> None:
    request = {"wheelbeat_fire_ms": 1_800_000_000_000, "delivery_info": None, "retries": None}
    assert RunHeaders.read("id", request) == RunHeaders(
        task_id="id",
        fire_ms=1_800_000_000_000,
        due_ms=1_800_000_000_000,
        nonce="",
        nesting=0,
        retries=0,
        redelivered=False,
        dead_lettered=False,
        waiting=False,
        claim_ttl_s=0,
        overlap="",
        job="",
        node="",
        owner="",
    )


@pytest.mark.parametrize(
    ("header", "value", "words"),
    [
        ("wheelbeat_fire_ms", "noon", "noon"),
        ("wheelbeat_fire_ms", math.inf, "not a whole number"),
        ("wheelbeat_claim_ttl", -5, "wheelbeat_claim_ttl = -5, expected 0 to 31536000"),
        ("wheelbeat_claim_ttl", 10**18, "expected 0 to 31536000"),
        ("wheelbeat_claim_ttl", math.inf, "not a whole number"),
    ],
)
def test_a_header_that_no_store_could_keep_is_refused_before_it_looks_like_an_outage(
    header: str, value: object, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        run_of(**{header: value})


def test_most_jobs_need_no_further_header() -> None:
    assert worker_headers("monitor:1", "ns") == {}
    assert worker_headers("monitor:1", "ns", ttl_s=86_400, remembered_s=86_400) == {}
    assert worker_headers("monitor:1", "ns", overlap="skip", ttl_s=8_192, remembered_s=86_400) == {
        "wheelbeat_overlap": "skip",
        "wheelbeat_job": "ns/monitor:1",
        "wheelbeat_claim_ttl": 8_192,
    }


@pytest.mark.parametrize(
    ("visibility_s", "interval_ms", "expires_s", "ttl_s"),
    [
        (3_600, 60_000, None, 8_192),  # two visibility timeouts
        (0, 60_000, None, 2_048),  # 20 intervals
        (0, 60_000, 4_000, 4_096),  # the message's own end
        (0, 1, None, 1),
        (3_600, 86_400_000, None, 86_400),  # never more than is remembered
        (3_600, None, None, 86_400),  # cron and one-off jobs
    ],
)
def test_how_long_a_claim_is_remembered(
    visibility_s: float, interval_ms: int | None, expires_s: float | None, ttl_s: int
) -> None:
    found = claim_ttl_s(86_400, visibility_timeout_s=visibility_s, interval_ms=interval_ms, expires_s=expires_s)
    assert found == ttl_s


@given(st.integers(1, 10**12), st.floats(0, 10**6))
def test_few_distinct_times_exist_and_none_is_too_short(interval_ms: int, visibility_s: float) -> None:
    ttl_s = claim_ttl_s(86_400, visibility_timeout_s=visibility_s, interval_ms=interval_ms)
    assert ttl_s == 86_400 or ttl_s.bit_count() == 1
    assert ttl_s >= min(86_400, 20 * interval_ms / 1000, 2 * visibility_s)


def test_which_lease_a_run_needs() -> None:
    assert lease_name(run_of(), Policy(), "t") is None
    assert lease_name(run_of(wheelbeat_overlap="skip"), Policy(), "t") == "job:ns/monitor:1"
    assert lease_name(run_of(wheelbeat_overlap="skip"), Policy(overlap="allow"), "t") is None
    assert lease_name(run_of(), Policy(overlap="queue_one"), "t") == "task:t"
    assert lease_name(run_of(), Policy(exclusive=True), "t") == "run:id:5"
    assert lease_name(run_of(wheelbeat_overlap="skip"), Policy(exclusive=True), "t") == "job:ns/monitor:1"
    assert lease_name(run_of(wheelbeat_overlap="unheard-of"), Policy(), "t") is None


@pytest.mark.parametrize(
    ("overlap", "more", "verdict", "contention"),
    [
        ("skip", {}, Verdict.ELECTED, Contention.SKIP),
        ("skip", {"retries": 1}, Verdict.ELECTED, Contention.WAIT),
        ("skip", {}, Verdict.HELD, Contention.WAIT),
        ("skip", {}, Verdict.REOPENED, Contention.WAIT),
        ("queue_one", {}, Verdict.ELECTED, Contention.QUEUE),
        ("queue_one", {"wheelbeat_waiting": True}, Verdict.REOPENED, Contention.QUEUE),
        ("queue_one", {"retries": 2}, Verdict.ELECTED, Contention.WAIT),
        ("allow", {}, Verdict.ELECTED, Contention.WAIT),  # only exclusive: the second one waits
    ],
)
def test_what_a_run_does_while_its_lease_is_taken(
    overlap: str, more: dict[str, Any], verdict: Verdict, contention: Contention
) -> None:
    assert contend(run_of(wheelbeat_overlap=overlap, **more), Policy(), verdict) is contention


def test_a_task_chooses_and_the_settings_say_the_rest() -> None:
    default = Policy.of(Settings(dedup_exclusive=True, dedup_key="content"))
    chosen = default.choose("t", {"overlap": "skip", "lease_s": 60}, acks_late=False)
    assert chosen == Policy(overlap="skip", exclusive=True, key="content", lease_s=60)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"overlp": "skip"}, "did you mean 'overlap'"),
        ({"overlap": "never"}, "expected one of 'allow', 'skip', 'queue_one'"),
        ({"outage": "closed"}, "set acks_late=True on the task, or outage='open'"),
        ({"lease_s": 1}, "expected 0 < wait_s <= lease_s"),
        ({"lease_s": 1e20}, "wait_s <= lease_s <= 604800"),
        ({"wait_s": -1}, "expected 0 < wait_s"),
        ({"lease_s": math.nan}, "expected 0 < wait_s"),
        ({"lease_s": "30"}, "lease_s = '30', expected seconds"),
        ({"exclusive": "no"}, "exclusive = 'no', expected True or False"),
        ("skip", "wheelbeat = 'skip', expected a dict of exclusive, key"),
    ],
)
def test_a_choice_that_cannot_be_kept_names_the_task_and_the_remedy(choices: Any, words: str) -> None:
    with pytest.raises(InvalidSetting, match=r"task app\.check: ") as caught:
        Policy().choose("app.check", choices, acks_late=False)
    assert words in str(caught.value)


def test_the_pace_is_that_of_the_last_minute() -> None:
    pace = ClaimRate(0)
    assert pace.per_s(0, 0) == 0
    assert pace.per_s(10, 50) == 5
    total = 0
    for now_s in range(10, 1_000, 10):
        total += 1_000 if now_s < 900 else 20
        pace.note(now_s, total)
    assert pace.per_s(990, total) == 2
    assert len(pace._notes) <= 8


def test_the_breaker_asks_a_dead_store_ever_more_seldom() -> None:
    breaker = Breaker(hold_s=1, max_hold_s=4)
    assert breaker.allows(0)
    asked_at_s = []
    now_s = 0.0
    while now_s < 20:
        if breaker.allows(now_s):
            asked_at_s.append(now_s)
            assert breaker.failed(now_s) is (len(asked_at_s) == 1)
        now_s += 0.5
    assert asked_at_s == [0, 1, 3, 7, 11, 15, 19]
    assert breaker.succeeded()
    assert not breaker.succeeded()
    assert breaker.failed(30)
    assert breaker.allows(31)
