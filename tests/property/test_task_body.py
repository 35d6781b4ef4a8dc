"""The quick way to encode arguments against Celery's own."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.utils.saferepr import saferepr
from hypothesis import example, given
from hypothesis import strategies as st
from kombu import serialization
from kombu.utils import json as kombu_json

from celery_wheelbeat.dispatch.messages.task_body import Encoded, TaskBody

EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
JSON = ("application/json", "utf-8")
APP = Celery("tests", broker="memory://", set_as_current=False)


def body_of(app: Celery = APP, task: Any = None) -> TaskBody:
    content_type, encoding, body = serialization.dumps(((), {}, EMBED), serializer="json")
    recording = SimpleNamespace(content_type=content_type, content_encoding=encoding, headers={}, body=body.encode())
    return TaskBody(app, recording, task)


def by_celery(payload: bytes) -> tuple[bytes, str, str]:
    args, kwargs = kombu_json.loads(payload)
    _, _, body = serialization.dumps((args or (), kwargs or {}, EMBED), serializer="json")
    sizes = (APP.amqp.argsrepr_maxsize, APP.amqp.kwargsrepr_maxsize)
    return body.encode(), saferepr(args or (), sizes[0], 3), saferepr(kwargs, sizes[1], 3)


PLAIN = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | PLAIN | st.text(max_size=10)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PLAIN, inner, max_size=3))
PAYLOADS = st.tuples(st.lists(VALUES, max_size=4), st.dictionaries(PLAIN, VALUES, max_size=4))


def as_json(arguments: tuple[list[Any], dict[str, Any]], separators: tuple[str, str], ascii_only: bool) -> bytes:
    return json.dumps(arguments, separators=separators, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")


def check(found: Any, payload: bytes) -> None:
    """Compare with what Celery makes of ``payload``."""
    expected: Any
    try:
        expected = by_celery(payload)
    except Exception as error:
        expected = error
    if isinstance(expected, Exception):
        found, expected = repr(found), repr(expected)
    assert found == expected


SEPARATORS = st.sampled_from([(", ", ": "), (",", ":")])


@given(st.lists(st.builds(as_json, PAYLOADS, SEPARATORS, st.booleans()), min_size=1, max_size=8))
@example([b"[[], {}]"])
@example([b"[[1], {}]", b'[["a"], {"k": "b c"}]', b"[[], {}]"])
@example([b"[[1], {}", b"[[2], {}]"])
@example([b'[["a], {"k": "b"}]', b'[["c], {"k": "d"}]'])
@example([b'[["]", {"a": 1}]', b'[["}"], {"a": 1}]]'])
@example([b'[["it\'s", "\x7f", "[", "{"], {"__type__": "x"}]'])
@example([b'[[NaN, 1e400, -0.0, 1e16], {"[": "{"}]'])
def test_any_arguments_are_encoded_as_celery_does(payloads: list[bytes]) -> None:
    for found, payload in zip(body_of().of_payloads(payloads), payloads, strict=True):
        check(found, payload)


@pytest.mark.parametrize(
    "payload",
    [
        b'[[1, 2], {"a": 1, "a": 2}]',
        b" [ [1] , { } ]\n",
        b"[[1],{}]",
        b'[[{"a": 1}], {}]',
        b'[[], {"a": []}]',
        b'[["\\u0041"], {"b": "\\n"}]',
        b"[[1E5, 10000000000000000000000, 0.1e-7], {}]",
        b'[["' + b"x" * 250 + b'"], {}]',
        '[["ü"], {}]'.encode(),
        b"[[true, false, null], {}]",
        b'[["a\x01b"], {}]',
        b"[[1], {}",
        b"[[1], {}] x",
        b"[[1] {}]",
        b"[[1], {'a': 1}]",
        b"",
    ],
)
def test_texts_that_people_type(payload: bytes) -> None:
    for company in ([], [b"[[5], {}]"] * 2, [b"[[6], {}", b'[["]", {}]']):
        found = body_of().of_payloads([*company, payload, *company])
        for one, text in zip(found, [*company, payload, *company], strict=True):
            check(one, text)


def test_arguments_that_do_not_fit_the_signature_are_refused() -> None:
    @APP.task(name="tests.two", shared=False)
    def two(first: int, second: int) -> None: ...

    refused, fitting = body_of(task=APP.tasks["tests.two"]).of_payloads([b"[[1], {}]", b"[[1, 2], {}]"])
    assert "second" in str(refused)
    check(fitting, b"[[1, 2], {}]")


def test_short_reprs_that_are_asked_for_are_kept_to() -> None:
    app = Celery("short", broker="memory://", set_as_current=False)
    app.amqp.argsrepr_maxsize = 20
    (found,) = body_of(app).of_payloads([b'[["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"], {}]'])
    assert isinstance(found, Encoded)
    assert found.args_repr == saferepr(["a" * 43], 20, 3)


def test_another_serializer_under_the_name_of_json_is_used() -> None:
    serialization.register("json", lambda value: json.dumps(value, separators=(",", ":")), json.loads, *JSON)
    try:
        (found,) = body_of().of_payloads([b"[[1, 2], {}]"])
        assert isinstance(found, Encoded)
        assert found.body.startswith(b"[[1,2],{},")
    finally:
        serialization.register("json", kombu_json.dumps, kombu_json.loads, *JSON)
