"""Parts of messages that are used once: the same bytes as one by one, for any arguments, in few calls."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.lanes.fast_lane import form_of, make_app, make_wire

from celery_wheelbeat.dispatch.fast_lane.rendering import Unfit, columns_of
from celery_wheelbeat.dispatch.messages import single_use
from celery_wheelbeat.dispatch.messages.envelope import Envelope
from celery_wheelbeat.dispatch.messages.envelope_maker import Arguments
from celery_wheelbeat.engine.payloads import Payloads

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery_wheelbeat.dispatch.messages.part_cache import PartColumns
    from celery_wheelbeat.dispatch.messages.patterns import Form
    from celery_wheelbeat.schedules.kinds import UInt32s

FORMS = (
    form_of("lanes.check", {}),
    form_of("lanes.anything", {"priority": 7}),
    form_of("not.registered", {"headers": {"trace": 'ä%s%%b \\ "'}, "time_limit": 3}),
    form_of("lanes.anything", {"expires": 30}, ("wheelbeat_claim_ttl", 8192)),
    form_of("lanes.anything", {"serializer": "pickle"}),
    form_of("lanes.anything", {"compression": "gzip"}),
)


@pytest.fixture(scope="module", params=["redis", "amqp"])
def envelopes(request: pytest.FixtureRequest, redis_url: str, amqp_url: str) -> Iterator[dict[Form, Envelope]]:
    wire = make_wire(make_app(redis_url if request.param == "redis" else amqp_url), kind=request.param)
    wire.connect()
    made: dict[Form, Any] = {form: wire.make(form, [Arguments([1], {}), Arguments(["a"], {})]) for form in FORMS}
    assert all(isinstance(envelope, Envelope) for envelope in made.values()), made
    yield made
    wire.close(broken=False)


def stored(payloads: Sequence[bytes], names: Sequence[bytes]) -> tuple[Payloads, UInt32s]:
    pages = Payloads()
    lengths, name_lengths = (np.array(list(map(len, texts)), np.uint32) for texts in (payloads, names))
    return pages, pages.add(b"".join(payloads), lengths, b"".join(names), name_lengths)


def parts(columns: PartColumns) -> list[tuple[bytes, ...]]:
    """Return whole, body, reprs and name of each run."""
    found = []
    holes = zip(columns.begin, columns.body_length, columns.reprs_length, columns.name_length, strict=True)
    for begin, *lengths in holes:
        ends = np.cumsum([begin + columns.opening_width, *lengths]).tolist()
        bounds = zip([int(begin), *ends[:-1]], ends, strict=True)
        found.append(tuple(columns.buffer[start:end].tobytes() for start, end in bounds))
    return found


def both(form: Form, envelope: Envelope, payloads: Sequence[bytes], names: Sequence[bytes]) -> tuple[Any, Any]:
    """Return parts, or which runs have none, by columns and one by one."""
    pages, refs = stored(payloads, names)

    def one_by_one(positions: Any) -> PartColumns:
        return columns_of(envelope, pages, refs, positions)

    def tried(render: Any) -> Any:
        try:
            return parts(render())
        except Unfit as unfit:
            return sorted(unfit.errors)

    every = np.arange(len(payloads))
    by_columns = tried(lambda: single_use.used_once(form, envelope, pages.read(refs), one_by_one))
    return by_columns, tried(lambda: one_by_one(every))


PLAIN = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | PLAIN | st.text(max_size=10)
FLAT = st.tuples(st.lists(SCALARS, max_size=3), st.dictionaries(PLAIN, SCALARS, max_size=3))
DEEP = st.just(([[1]], {"a": {"b": 1}}))
SEPARATORS = st.sampled_from([(", ", ": "), (",", ":"), (" , ", " : ")])
ASCII = st.booleans()
PAYLOADS = st.builds(
    lambda arguments, separators, ascii_only: json.dumps(
        arguments, separators=separators, ensure_ascii=ascii_only
    ).encode("utf-8", "surrogatepass"),
    st.one_of(FLAT, DEEP),
    SEPARATORS,
    ASCII,
)
EXACT = {
    "max_examples": 60,
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


@settings(**EXACT)
@given(st.lists(PAYLOADS, min_size=1, max_size=12), st.sampled_from(FORMS), st.booleans())
@example([b"[[], {}]", b'[["a"], {"x": 1}]', b"[[1, 2, 3], {}]"], FORMS[0], True)
@example([b"[[1], {}]", b'[["a], {"k": "b"}]', b'[["c], {"k": "d"}]'], FORMS[1], True)
@example([b'[["]", {"a": 1}]', b'[["}"], {"a": 1}]]'], FORMS[1], True)
@example([b"[[NaN, 1e400, -0.0, 1e16], {}]", b'[["it\'s"], {"__type__": "x"}]'], FORMS[1], True)
@example([b"[[1], {}]", b"[[2], {}", b"[[3] {}]"], FORMS[1], True)
@example([b"[[1], {}] x", b"[[1],{}]\n", b" [[1],{}]"], FORMS[1], True)
def test_any_runs_have_the_parts_that_they_have_one_by_one(
    envelopes: dict[Form, Envelope], payloads: list[bytes], form: Form, same_name: bool
) -> None:
    padded = [*payloads, *(b'[[%d], {"url": "u"}]' % n for n in range(single_use.RUNS_MIN))]
    names = [b"lanes.check" if same_name else b"name %d" % n for n in range(len(padded))]
    by_columns, one_by_one = both(form, envelopes[form], padded, names)
    assert by_columns == one_by_one


@pytest.mark.parametrize("runs", [2_000, 6_000])
def test_a_run_costs_few_calls(envelopes: dict[Form, Envelope], runs: int) -> None:
    form = FORMS[0]
    payloads = [b'[[%d], {"url": "https://example.org/%d"}]' % (n, n % 7) for n in range(runs)]
    pages, refs = stored(payloads, [b"lanes.check"] * runs)
    texts = pages.read(refs)
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        single_use.used_once(form, envelopes[form], texts, lambda _: pytest.fail("rendered one by one"))
    finally:
        sys.setprofile(None)
    assert calls < runs + 400, "the signature check is the only call for each run"
