"""Parses the JSON columns of a monitor: args, kwargs, headers and options as users type them.

Accepts what Celery's own serializer reads, including ``__type__`` markers: the caller passes the decoder that reads
them, because user code can register types with kombu.
Errors name line and column. Accepted text is valid for every JSON reader: no NaN, no Infinity, no lone surrogate. The
last of equal keys wins, as in Python and Celery. It must never raise anything but ``InvalidMonitor``.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NoReturn

from celery_wheelbeat.errors import InvalidMonitor

if TYPE_CHECKING:
    from collections.abc import Callable

    Decoder = Callable[[str], object]
    """Decodes a JSON text as the worker will; raises for a marker that it cannot read."""

_MARKER = "__type__"


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


def no_markers(_text: str) -> object:
    """Refuse every marker; the ``Decoder`` of callers without another one."""
    raise LookupError("no decoder for markers was given")


def parse_list(field: str, text: str | None, decode: Decoder = no_markers) -> list[Any]:
    """Return the list in ``text``; NULL, empty and blank are ``[]``. Raises ``InvalidMonitor`` for ``field``."""
    value = _parse(field, text or "", "[]", decode)
    if not isinstance(value, list):
        raise InvalidMonitor(field, f'expected a JSON list like [1, "two"], got {_kind(value)}')
    return value


def parse_object(field: str, text: str | None, decode: Decoder = no_markers) -> dict[str, Any]:
    """Return the object in ``text``; NULL, empty and blank are ``{}``. Raises ``InvalidMonitor`` for ``field``."""
    value = _parse(field, text or "", "{}", decode)
    if not isinstance(value, dict):
        raise InvalidMonitor(field, f'expected a JSON object like {{"key": "value"}}, got {_kind(value)}')
    return value


def _parse(field: str, text: str, empty: str, decode: Decoder) -> Any:
    text = text if text.strip() else empty
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
    if _MARKER in text or (escapes and _has_marker(value)):  # the marker may be spelled with escapes
        _check_markers(field, text, decode)
    return value


def _has_marker(value: Any) -> bool:
    rest = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, dict):
            if _MARKER in one:
                return True
            rest += one.values()
        elif isinstance(one, list):
            rest += one
    return False


def _check_characters(field: str, value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        lone = f"U+{ord(error.object[error.start]):04X}"
        raise InvalidMonitor(field, f"not valid JSON: {lone} is half of a surrogate pair, not a character") from None


def _check_markers(field: str, text: str, decode: Decoder) -> None:
    try:
        decode(text)
    except Exception as error:  # a type's decoder is user code
        raise InvalidMonitor(field, f'a "__type__" marker that Celery cannot read: {error!r}') from None


def _kind(value: object) -> str:
    names = {list: "a list", dict: "an object", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
