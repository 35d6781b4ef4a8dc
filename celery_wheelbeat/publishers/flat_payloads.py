"""Flat payloads: ``[[…], {…}]`` in JSON without anything nested, quoted oddly or escaped, encoded many at a time.

Most of the cost of a JSON text of a hundred bytes is in the calls. Where no text holds a bracket or a backslash, and
each has its quotes in pairs, many of them can be decoded, encoded and shown as one and taken apart again: the borders
between them look like nothing inside of them.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_PLAIN = rb"[^\[\]{}'\\\x7f-\xff]*"
_FLAT = re.compile(rb"\[\[%b\]\s*,\s*\{%b\}\]" % (_PLAIN, _PLAIN))
_LONGEST = 256
"""Longer ones are rare, and may be cut short in a repr."""
_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


LONGEST_REPR = _LONGEST + 8
"""No repr of the arguments of a flat payload is longer."""


class FlatColumns(NamedTuple):
    """Flat payloads, decoded and written again."""

    values: list[tuple[list[Any], dict[str, Any]]]
    json: list[str]
    """What the encoder writes between ``[[`` and ``}]``."""
    args_reprs: list[str]
    """Without brackets."""
    kwargs_reprs: list[str]
    """Without braces."""


def is_flat(payload: bytes) -> bool:
    """Whether ``payload`` may be part of ``encode``; if it is JSON at all."""
    return (
        len(payload) < _LONGEST
        and _FLAT.fullmatch(payload) is not None
        and payload.count(b'"') % 2 == 0
        and b"__type__" not in payload
    )


def encode(payloads: Sequence[bytes], to_json: Callable[[Any], str]) -> FlatColumns | None:
    """Encode flat payloads (at least one) with ``to_json``; None where one of them is no JSON.

    They cannot be mistaken for each other: at the end of a payload no string is open, and what it has opened it has
    closed, or the whole is no JSON.
    """
    text = "[" + ",".join([payload.decode("ascii") for payload in payloads]) + "]"
    try:
        values, end = _scan(text, 0)
    except (StopIteration, ValueError):
        return None
    if end != len(text) or len(values) != len(payloads):
        return None
    return FlatColumns(
        values,
        to_json(values)[3:-3].split("}], [["),
        repr([args for args, _ in values])[2:-2].split("], ["),
        repr([kwargs for _, kwargs in values])[2:-2].split("}, {"),
    )
