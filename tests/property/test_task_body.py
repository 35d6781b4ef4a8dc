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

from celery_wheelbeat.publishers.task_body import TaskBody

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


@given(PAYLOADS, st.sampled_from([(", ", ": "), (",", ":")]), st.booleans())
@example(([], {}), (", ", ": "), True)
@example(([1, "a" * 200], {"k": 'b"c'}), (", ", ": "), True)
@example((["it's", "\x7f", "[", "{"], {"__type__": "x"}), (", ", ": "), True)
@example(([float("nan"), 1e400, -0.0, 1e16], {"[": "{"}), (",", ":"), True)
def test_any_arguments_are_encoded_as_celery_does(
    arguments: tuple[list[Any], dict[str, Any]], separators: tuple[str, str], ascii_only: bool
) -> None:
    payload = json.dumps(arguments, separators=separators, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    try:
        expected = by_celery(payload)
    except Exception as error:
        with pytest.raises(type(error)):
            body_of().of_payload(payload)
        return
    assert body_of().of_payload(payload) == expected


@pytest.mark.parametrize(
    "payload",
    [
        b'[[1, 2], {"a": 1, "a": 2}]',
        b" [ [1] , { } ]\n",
        b'[[{"a": 1}], {}]',
        b'[[], {"a": []}]',
        b'[["\\u0041"], {"b": "\\n"}]',
        b"[[1E5, 10000000000000000000000, 0.1e-7], {}]",
        b'[["' + b"x" * 250 + b'"], {}]',
        '[["ü"], {}]'.encode(),
    ],
)
def test_texts_that_people_type(payload: bytes) -> None:
    assert body_of().of_payload(payload) == by_celery(payload)


@pytest.mark.parametrize("payload", [b"[[1], {}", b"[[1], {}] x", b"[[1] {}]", b"", b"[[1], {'a': 1}]"])
def test_what_is_no_json_is_refused_with_the_decoders_own_words(payload: bytes) -> None:
    with pytest.raises(json.JSONDecodeError) as raised:
        body_of().of_payload(payload)
    with pytest.raises(json.JSONDecodeError) as expected:
        kombu_json.loads(payload)
    assert str(raised.value) == str(expected.value)


def test_arguments_that_do_not_fit_the_signature_are_refused() -> None:
    @APP.task(name="tests.two", shared=False)
    def two(first: int, second: int) -> None: ...

    with pytest.raises(TypeError, match="second"):
        body_of(task=APP.tasks["tests.two"]).of_payload(b"[[1], {}]")
    assert body_of(task=APP.tasks["tests.two"]).of_payload(b"[[1, 2], {}]") == by_celery(b"[[1, 2], {}]")


def test_another_serializer_under_the_name_of_json_is_used() -> None:
    serialization.register("json", lambda value: json.dumps(value, separators=(",", ":")), json.loads, *JSON)
    try:
        assert body_of().of_payload(b"[[1, 2], {}]").body.startswith(b"[[1,2],{},")
    finally:
        serialization.register("json", kombu_json.dumps, kombu_json.loads, *JSON)
