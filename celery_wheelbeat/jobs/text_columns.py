"""Screens thousands of names and arguments at once for texts that might have a problem.

The screen may fail a good text: rows that fail are compiled one by one, and ``jobs.validation`` decides. It must never
pass a text that ``jobs.validation`` would refuse, provided that the arguments are valid JSON.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from celery_wheelbeat.jobs.names import REFUSED_IN_UTF8

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from celery_wheelbeat.schedules.kinds import Int64s

_BLANK, _DELETE = 0x20, 0x7F
_OPENING: Final = (ord("["), ord("{"))
_CLOSING: Final = (ord("]"), ord("}"))
_MARKER: Final = b'"__type__"'
_ESCAPES: Final = re.compile(rb"\\u(?:00[567]|[dD][89a-fA-F])|(?<!\\)(?:\\\\)*\\(?![\"\\/bfnrt]|u[0-9a-fA-F]{4})")
"""Escapes that may spell a letter of the marker, or half of a surrogate pair; and those that are not JSON's."""
_LONG_EXPONENT: Final = re.compile(rb"[\[,:\s]-?\d+(?:\.\d+)?[eE]\+?\d{3}")
_RUN: Final = 100
"""Numbers with twice as many digits fail. A shorter one with an exponent below 100 is never infinite."""
_LONGEST_FRACTION: Final = 2 * _RUN


def valid_names(names: bytes, lengths: Int64s, longest: int) -> NDArray[np.bool_]:
    """Return a mask of the names that are not empty, have at most ``longest`` bytes, and no refused character."""
    valid = (lengths > 0) & (lengths <= longest)
    if not valid.any():
        return valid
    ends = np.cumsum(lengths)
    first = _octets_at(names, ends - lengths)
    valid &= (first > _BLANK) & (first < _DELETE)  # excludes names of blank or unprintable characters only
    octets = np.frombuffer(names, np.uint8)
    if octets.min() < _BLANK or (octets == _DELETE).any() or not names.isascii():
        valid[_rows_of((found.start() for found in REFUSED_IN_UTF8.finditer(names)), ends)] = False
    return valid


def valid_payloads(payload: bytes, lengths: Int64s, args_lengths: Int64s) -> NDArray[np.bool_]:
    """Return a mask of the payloads (``[args, kwargs]``) that can be sent unchanged.

    They are valid JSON except for escapes, because MariaDB's ``json_valid`` takes any character behind a backslash.
    """
    valid = (args_lengths >= 2) & (lengths - args_lengths >= 6)
    if not valid.any():
        return valid
    ends = np.cumsum(lengths)
    args_at = ends - lengths + 1
    kwargs_at = args_at + args_lengths + 2
    valid &= _octets_at(payload, args_at) == _OPENING[0]
    valid &= _octets_at(payload, kwargs_at - 3) == _CLOSING[0]
    valid &= _octets_at(payload, kwargs_at) == _OPENING[1]
    valid &= _octets_at(payload, ends - 2) == _CLOSING[1]
    for suspicious in (
        _finds(payload, _MARKER),
        _finds(payload, b"\0"),
        _escapes(payload),
        _large_numbers(payload),
    ):
        valid[_rows_of(suspicious, ends)] = False
    return valid


def _finds(text: bytes, sought: bytes) -> Iterator[int]:
    found = text.find(sought)
    while found >= 0:
        yield found
        found = text.find(sought, found + 1)


def _escapes(text: bytes) -> Iterator[int]:
    if b"\\" in text:
        yield from (found.start() for found in _ESCAPES.finditer(text))


def _large_numbers(text: bytes) -> Iterator[int]:
    """Yield positions of numbers that may exceed the range of ``float``."""
    octets = np.frombuffer(text, np.uint8)
    sampled = octets[::_RUN] - np.uint8(ord("0")) < 10
    for at in (np.flatnonzero(sampled[:-1] & sampled[1:]) * _RUN).tolist():
        if text[at : at + _RUN].isdigit():
            yield at
    follows = octets[1:]
    exponents = ((octets[:-1] | 0x20) == ord("e")) & ((follows == ord("+")) | (follows - np.uint8(ord("0")) < 10))
    for at in np.flatnonzero(exponents).tolist():
        if text[at - 1 : at].isdigit() and text[at + 1 : at + 5].lstrip(b"+")[:3].isdigit():
            begin = max(0, at - 2 * _LONGEST_FRACTION)
            if _LONG_EXPONENT.search(text, begin, at + 5):
                yield at


def _rows_of(positions: Iterable[int], ends: Int64s) -> NDArray[np.intp]:
    """Return the index of the text that holds each position."""
    return np.searchsorted(ends, np.fromiter(positions, np.int64), side="right")


def _octets_at(text: bytes, positions: Int64s) -> NDArray[np.uint8]:
    """Return the octet at each position; positions out of range (rows without a text) are clipped."""
    return np.frombuffer(text, np.uint8)[np.clip(positions, 0, len(text) - 1)]
