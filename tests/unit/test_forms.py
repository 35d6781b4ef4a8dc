"""Forms: which jobs share one, how many there may be, and that learning them costs a step each."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_wheelbeat.dispatch.fast_lane import envelope_registry as forms_module
from celery_wheelbeat.dispatch.fast_lane.envelope_registry import INTERVAL_BITS, EnvelopeRegistry, Pending
from celery_wheelbeat.dispatch.lane_rules import FORMS_MAX, KIND_SHIFT, TOO_MANY_FORMS
from celery_wheelbeat.dispatch.messages.claim_headers import claim_ttl_s
from celery_wheelbeat.dispatch.messages.patterns import Own, own_of, pattern_of, with_own
from celery_wheelbeat.dispatch.messages.redis_envelope import RedisEnvelope
from celery_wheelbeat.jobs.definitions import Overlap, Route
from celery_wheelbeat.jobs.routes import RouteTable
from celery_wheelbeat.jobs.send_options import MAX_EXPIRES_S
from celery_wheelbeat.schedules.intervals import INTERVAL_MAX_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MINUTE_MS = 60_000


def claims(interval_ms: int | None, expires: Any, overlap: Overlap) -> Mapping[str, Any]:
    """Return all that headers are made of, so that nothing may be mixed up."""
    return {"interval": interval_ms, "expires": expires, "overlap": overlap.name}


def few_claims(_interval_ms: int | None, _expires: Any, overlap: Overlap) -> Mapping[str, Any]:
    """Return what most jobs have: headers that do not depend on the interval."""
    return {} if overlap is Overlap.ALLOW else {"wheelbeat_overlap": overlap.name}


def route(**options: Any) -> Route:
    """Return a route of one task."""
    return Route("proj.check", json.dumps(options, sort_keys=True))


def forms_of(*routes: Route, most: int = FORMS_MAX) -> EnvelopeRegistry:
    """Return forms over a table with ``routes``."""
    table = RouteTable()
    for one in routes:
        table.intern(one)
    forms = EnvelopeRegistry(table, few_claims, most=most)
    table.freed = forms.forget_routes
    return forms


def kinds(routes: Sequence[int], overlap: Overlap = Overlap.ALLOW) -> np.ndarray:
    """Return the kinds of jobs with these routes."""
    return np.array([index << KIND_SHIFT | overlap.value for index in routes], np.int64)


def minutes(count: int) -> np.ndarray:
    return np.full(count, MINUTE_MS)


def learn_all(forms: EnvelopeRegistry, kind: np.ndarray, answer: Any = "a reason") -> int:
    """Answer every question about ``kind``; returns how many there were."""
    asked = 0
    for group in forms.groups(kind, minutes(len(kind))):
        if group.answer is Pending.UNASKED:
            forms.asked(group.form)
            forms.learn(group.form, answer)
            asked += 1
    return asked


def tally(forms: EnvelopeRegistry, kind: np.ndarray) -> dict[Any, int]:
    """Return how many of these jobs have which answer."""
    total = Counter[Any]()
    for answer, number in forms.tally(kind, np.ones(len(kind), np.int64)):
        total[answer] += number
    return dict(total)


@given(st.integers(1, MAX_EXPIRES_S) | st.floats(1e-9, MAX_EXPIRES_S), st.none() | st.integers(1, INTERVAL_MAX_MS))
@example(4_096.000_001, 1)
@example(86_400, None)
@example(MAX_EXPIRES_S, 1)
def test_the_power_of_two_of_an_expiry_gives_the_same_claim_headers(expires_s: float, interval_ms: int | None) -> None:
    found = pattern_of(route(expires=expires_s)).expires_s
    for remembered_s in (60, 86_400, 31_536_000):
        for visibility_timeout_s in (0.5, 1_800.0, 3_600.0):
            ttls = {
                claim_ttl_s(
                    remembered_s, visibility_timeout_s=visibility_timeout_s, interval_ms=interval_ms, expires_s=one
                )
                for one in (expires_s, found)
            }
            assert len(ttls) == 1


jobs = st.tuples(
    st.sampled_from([0, 1, 2, 999, 1000]),
    st.sampled_from(list(Overlap)),
    st.one_of(
        st.sampled_from([-1, 0, 1, 2**40 - 1, 2**40, 2**41 + 1, INTERVAL_MAX_MS - 1, INTERVAL_MAX_MS]),
        st.integers(1, INTERVAL_MAX_MS),
    ),
)


@given(st.lists(jobs, max_size=80))
@example([(1000, overlap, INTERVAL_MAX_MS) for overlap in Overlap])
@example([(0, Overlap.SKIP, 70 * 365 * 86_400_000), (0, Overlap.QUEUE_ONE, 36 * 365 * 86_400_000)])
def test_every_job_is_in_the_group_of_its_own_route_policy_and_interval(
    given_jobs: list[tuple[int, Overlap, int]],
) -> None:
    table = RouteTable()
    for number in range(1001):
        table.intern(Route(f"proj.t{number}"))
    forms = EnvelopeRegistry(table, claims, most=2_000)
    kind = np.array([index << KIND_SHIFT | overlap.value for index, overlap, _ in given_jobs], np.int64)
    interval = np.array([interval_ms for *_, interval_ms in given_jobs], np.int64)
    seen = []
    for group in forms.groups(kind, interval):
        assert (np.diff(group.positions) > 0).all()
        for at in group.positions.tolist():
            index, overlap, interval_ms = given_jobs[at]
            assert group.form.task == f"proj.t{index}"
            assert dict(group.form.headers) == claims(max(interval_ms, 0) or None, None, overlap)
            seen.append(at)
    assert sorted(seen) == list(range(len(given_jobs)))


def test_a_combination_fits_into_64_bits_with_a_sign() -> None:
    assert 1 << INTERVAL_BITS > INTERVAL_MAX_MS
    assert (FORMS_MAX + 2) << KIND_SHIFT << INTERVAL_BITS < 2**63
    assert max(one.value for one in Overlap) < 1 << KIND_SHIFT
    longer = np.array([2**62])
    (group,) = forms_of(route()).groups(kinds([0], Overlap.QUEUE_ONE), longer)
    assert dict(group.form.headers) == {"wheelbeat_overlap": "QUEUE_ONE"}, "even beyond what is accepted"


@pytest.mark.parametrize(
    ("options_of", "expected"),
    [
        (lambda number: {"headers": {"customer": number, "plan": "a" * (number % 7)}}, 1),
        (lambda number: {"headers": {f"customer-{number}": 1}}, 1),
        (lambda number: {"priority": number % 256, "routing_key": "k" * (number % 300 + 1)}, 1),
        (lambda number: {"time_limit": number, "soft_time_limit": number / 2}, 1),
        (lambda number: {"countdown": number}, 1),
        (lambda number: {"expires": 1_000 + number}, 6),
        (lambda number: {"expires": (number + 1) * 15.768}, 16),
    ],
)
def test_any_number_of_values_are_few_forms_and_one_question_each(
    options_of: Callable[[int], dict[str, Any]], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = {"patterns": 0, "headers": 0, "answers": 0}

    def counting(name: str, function: Any) -> Any:
        def counted(*args: Any, **options: Any) -> Any:
            steps[name] += 1
            return function(*args, **options)

        return counted

    count = 20_000
    table = RouteTable()
    for number in range(count):
        table.intern(route(**options_of(number)))
    monkeypatch.setattr(forms_module, "pattern_of", counting("patterns", forms_module.pattern_of))
    monkeypatch.setattr(EnvelopeRegistry, "_set", counting("answers", EnvelopeRegistry._set))
    forms = EnvelopeRegistry(table, counting("headers", few_claims))
    every = kinds(range(len(table)))
    for start in range(0, count, 8_000):
        learn_all(forms, every[start : start + 8_000], "an envelope")
    assert steps == {"patterns": len(table), "headers": expected, "answers": 2 * expected}
    forms.forget()
    assert learn_all(forms, every) == expected, "after a reconnect"
    assert steps["patterns"] == len(table), "and nothing is looked at again for it"
    forms.forget_forms()
    assert learn_all(forms, every) == expected
    assert (steps["patterns"], steps["headers"]) == (len(table), 2 * expected)


def test_learning_takes_a_step_for_each_form_and_no_more_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once each answer walked through all of them; and there was no end to them."""
    visits: list[int] = []
    answer = EnvelopeRegistry._set
    monkeypatch.setattr(EnvelopeRegistry, "_set", lambda self, *given: (visits.append(1), answer(self, *given)))
    count = 5 * FORMS_MAX
    forms = forms_of(*(route(exchange=f"e{number}") for number in range(count)))
    every = kinds(range(count))
    assert learn_all(forms, every) == FORMS_MAX
    assert len(visits) == 2 * FORMS_MAX
    assert len(forms._known) == len(forms._patterns) == FORMS_MAX
    (rest,) = [group for group in forms.groups(every, minutes(count)) if group.answer == TOO_MANY_FORMS]
    assert rest.positions.tolist() == list(range(FORMS_MAX, count)), "those that came later"
    assert forms.slow(np.arange(FORMS_MAX, count, dtype=np.uint32)).all()
    assert str(FORMS_MAX // 1_000) in TOO_MANY_FORMS
    assert tally(forms, every) == {"a reason": FORMS_MAX, TOO_MANY_FORMS: 4 * FORMS_MAX}


def test_forms_of_many_intervals_are_bounded_too() -> None:
    table = RouteTable()
    table.intern(route())
    forms = EnvelopeRegistry(table, claims, most=10)
    count = 1_000
    found = list(forms.groups(kinds([0] * count), np.arange(1, count + 1)))
    assert [len(group.positions) for group in found] == [1] * 10 + [count - 10]
    assert found[-1].answer == TOO_MANY_FORMS


def test_what_no_job_has_any_more_is_forgotten_and_makes_room() -> None:
    count = 50
    forms = forms_of(*(route(queue=f"q{number}") for number in range(count)), most=20)
    table = forms._routes
    learn_all(forms, kinds(range(count)))
    assert not [group for group in forms.groups(kinds([49]), minutes(1)) if group.answer != TOO_MANY_FORMS]
    table.begin_round()
    used = np.zeros(count, np.bool_)
    used[[3, 49]] = True
    table.collect(used)
    assert [json.loads(form.route.options) for form in forms._known] == [{"queue": "q3"}]
    assert learn_all(forms, kinds([3, 49]), "another") == 1, "there is room now"
    assert {form.route.options: answer for form, answer in forms.answers()} == {
        '{"queue": "q3"}': "a reason",
        '{"queue": "q49"}': "another",
    }
    table.begin_round()
    table.collect(np.zeros(count, np.bool_))
    assert not forms.answers()
    assert not forms._known
    assert not forms._patterns
    assert not forms._numbers
    assert not forms._by_code
    assert not forms._pattern_of.any()
    assert not forms.any_slow


def test_edits_without_end_leave_nothing_behind() -> None:
    table = RouteTable()
    forms = EnvelopeRegistry(table, few_claims)
    table.freed = forms.forget_routes
    for number in range(3_000):
        index = table.intern(route(queue=f"q{number}", headers={"revision": number}))
        table.begin_round()
        learn_all(forms, kinds([index]))
        table.collect(np.zeros(len(table), np.bool_))
    assert len(table) < 5
    assert len(forms._known) <= 1
    assert len(forms._by_code) <= 1
    assert len(forms._pattern_of) < 100


def test_codes_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms_module, "CODES_MAX", 100)
    forms = forms_of(route())
    for first in range(1, 5_000, 50):
        (group,) = forms.groups(kinds([0] * 50), np.arange(first, first + 50))
        assert len(group.positions) == 50
        assert len(forms._by_code) <= 100


def test_headers_that_cannot_be_made_concern_their_form_alone() -> None:
    def some(interval_ms: int | None, expires: Any, overlap: Overlap) -> Mapping[str, Any]:
        if expires == "never":
            raise OverflowError("too large")
        return few_claims(interval_ms, expires, overlap)

    table = RouteTable()
    good, bad = table.intern(route()), table.intern(route(expires="never"))
    forms = EnvelopeRegistry(table, some)
    answers = {group.form.route.options: group.answer for group in forms.groups(kinds([good, bad, good]), minutes(3))}
    assert answers == {
        "{}": Pending.UNASKED,
        '{"expires": "never"}': "its headers cannot be made: OverflowError: too large",
    }
    assert tally(forms, kinds([good, bad])) == {None: 1, answers['{"expires": "never"}']: 1}


def test_a_slow_pattern_becomes_fast_with_its_first_envelope() -> None:
    forms = forms_of(route(), route(queue="other"))
    every = np.array([0, 1], np.uint32)
    assert not forms.any_slow
    (allow,) = forms.groups(kinds([0]), minutes(1))
    (skip,) = forms.groups(kinds([0], Overlap.SKIP), minutes(1))
    forms.learn(allow.form, "a signal")
    assert (forms.any_slow, forms.slow(every).tolist()) == (True, [True, False])
    envelope = RedisEnvelope.__new__(RedisEnvelope)
    forms.learn(skip.form, envelope)
    assert (forms.any_slow, forms.slow(every).tolist()) == (False, [False, False])
    forms.learn(skip.form, "a signal")
    assert forms.slow(every).tolist() == [True, False]
    forms.forget()
    assert not forms.any_slow
    forms.learn(allow.form._replace(route=route(queue="unknown")), "an answer about what is forgotten")
    assert not forms.answers()


@pytest.mark.parametrize(
    ("options", "own", "common"),
    [
        ({"headers": {"b": 1, "a": [2]}, "priority": 3}, ("headers", "priority"), {}),
        ({"headers": {}}, (), {"headers": {}}),
        ({"routing_key": "ä.b", "exchange": "e"}, ("routing_key",), {"exchange": "e"}),
        (
            {"shadow": "s", "task_id": "t", "link": {"task": "a"}, "exchange": "e"},
            ("link", "shadow", "task_id"),
            {"exchange": "e"},
        ),
        ({"shadow": "", "link": [], "reply_to": None}, (), {"shadow": "", "link": [], "reply_to": None}),
        ({"app_id": "a", "expires": 3, "user_id": "u"}, ("app_id", "expires"), {"user_id": "u"}),
        ({"expires": "2030-01-02"}, (), {"expires": "2030-01-02"}),
        ({"expires": "2030-01-02T03:04:05"}, (), {"expires": "2030-01-02T03:04:05"}),
        ({"expires": "2030-01-02T03:04:05+01:00"}, (), {"expires": "2030-01-02T03:04:05+01:00"}),
        ({"expires": "2030-01-02 03:04:05+00:00"}, (), {"expires": "2030-01-02 03:04:05+00:00"}),
        ({"expires": "2030-01-02T03:04:05+00:00"}, ("expires",), {}),
        ({"expires": "2030-01-02T03:04:05.000600+00:00"}, ("expires",), {}),
        ({"expires": True, "priority": False}, (), {"expires": True, "priority": False}),
        ({"expires": 0, "priority": 256}, (), {"expires": 0, "priority": 256}),
        ({"priority": 0.5, "time_limit": "1"}, (), {"priority": 0.5, "time_limit": "1"}),
        ({"priority": 0, "time_limit": 0, "soft_time_limit": 1.5}, ("priority", "soft_time_limit", "time_limit"), {}),
        ({"countdown": 0, "eta": "2030-01-02"}, ("countdown", "eta"), {}),
        ({"headers": {"Baggage": "x", "a": 1}}, (), {"headers": {"Baggage": "x", "a": 1}}),
        ({"headers": {"wheelbeat_job": "x"}}, (), {"headers": {"wheelbeat_job": "x"}}),
        ({"headers": {"sentry-propagate-traces": False}}, (), {"headers": {"sentry-propagate-traces": False}}),
        ({"headers": ["no mapping"]}, (), {"headers": ["no mapping"]}),
    ],
)
def test_what_is_a_jobs_own(options: dict[str, Any], own: tuple[str, ...], common: dict[str, Any]) -> None:
    form = pattern_of(route(**options))
    assert form.options == own
    assert json.loads(form.route.options) == common
    assert with_own(json.loads(form.route.options), own_of(route(**options), form)) == options
    assert form.has_own == (own_of(route(**options), form) != Own())
