"""Parses the JSON columns of a monitor: args, kwargs, headers and options as users type them.

Accepts what Celery's own serializer reads, including ``__type__`` markers, which run decoders registered with kombu.
Errors name line and column. Accepted text is valid for every JSON reader: no NaN, no Infinity, no lone surrogate. The
last of equal keys wins, as in Python and Celery. It must never raise anything but ``InvalidMonitor``.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from kombu.utils import json as kombu_json

from celery_wheelbeat.errors import InvalidMonitor

_MARKER = '"__type__"'


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


class _TooLarge(ValueError):
    pass


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _TooLarge(f"{text:.40} is too large: it would be sent as Infinity")
    return number


_decoder = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


_lenient = json.JSONDecoder(parse_constant=_refuse_constant)


def _decode(text: str) -> Any:
    """Decode ``text``; raises ``ValueError``. A number that is too large is accepted if a later key replaces it."""
    try:
        return _decode_finite(text)
    except _TooLarge:
        value = _lenient.decode(text)
        if _holds_infinity(value):
            raise
        return value


def _holds_infinity(value: Any) -> bool:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, float) and math.isinf(one):
            return True
    return False


def _decode_finite(text: str) -> Any:
    """Decode ``text`` like ``_decoder.decode``; twice as fast if no whitespace surrounds the value."""
    try:
        value, end = _decoder.scan_once(text, 0)  # type: ignore[attr-defined]  # typeshed does not know it
    except (StopIteration, ValueError):
        return _decoder.decode(text)
    return value if end == len(text) else _decoder.decode(text)


def parse_list(field: str, text: str | None) -> list[Any]:
    """Return the list in ``text``; NULL, empty and blank are ``[]``. Raises ``InvalidMonitor`` for ``field``."""
    value = _parse(field, text, "[]")
    if not isinstance(value, list):
        raise InvalidMonitor(field, f'expected a JSON list like [1, "two"], got {_kind(value)}')
    return value


def parse_object(field: str, text: str | None) -> dict[str, Any]:
    """Return the object in ``text``; NULL, empty and blank are ``{}``. Raises ``InvalidMonitor`` for ``field``."""
    value = _parse(field, text, "{}")
    if not isinstance(value, dict):
        raise InvalidMonitor(field, f'expected a JSON object like {{"key": "value"}}, got {_kind(value)}')
    return value


def _parse(field: str, text: str | None, empty: str) -> Any:
    if text is None or not text.strip():
        text = empty
    try:
        value = _decode(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidMonitor(field, f"not valid JSON: {error.msg.removesuffix(' at')} at {where}") from None
    except RecursionError:
        raise InvalidMonitor(field, "not valid JSON: nested too deeply") from None
    except ValueError as error:
        raise InvalidMonitor(field, f"not valid JSON: {error}") from None
    escapes = "\\u" in text
    if escapes or not text.isascii():
        _check_characters(field, value if escapes else text)
    if escapes or _MARKER in text:  # the marker may be spelled with escapes
        _check_markers(field, text)
    return value


def _check_characters(field: str, value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        lone = f"U+{ord(error.object[error.start]):04X}"
        raise InvalidMonitor(field, f"not valid JSON: {lone} is half of a surrogate pair, not a character") from None


def _check_markers(field: str, text: str) -> None:
    try:
        kombu_json.loads(text)  # type: ignore[no-untyped-call]  # kombu is annotated in part
    except Exception as error:  # decoders registered with kombu are user code
        raise InvalidMonitor(field, f'a "__type__" marker that Celery cannot read: {error!r}') from None


def _kind(value: object) -> str:
    names = {list: "a list", dict: "an object", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
