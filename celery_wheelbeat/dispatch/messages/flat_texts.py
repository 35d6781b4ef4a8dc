"""Arguments of many runs at once: flat payloads, encoded and shown as Celery does, without a step per run.

A payload is *flat* if it is short and plain: a list and an object without nesting, apostrophe, escape or non-ASCII (see
``task_body.is_flat``). Then brackets and braces stand at the bounds of values only, so the output of one encoder call
for all payloads is cut at them. Never: I/O, or a guess; what is not flat is left to the caller.
"""

from __future__ import annotations

from binascii import b2a_base64
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from celery_wheelbeat.dispatch.messages.byte_ranges import ByteRanges

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from celery_wheelbeat.dispatch.messages.byte_ranges import Int64s, Octets

_PLAIN, _QUOTE, _BAD = 0, 5, 6
_SHAPE = b"[[]{}]"
"""The brackets and braces of a flat payload."""
_STRUCTURAL = {ord("["): 1, ord("]"): 2, ord("{"): 3, ord("}"): 4}


def _kinds() -> NDArray[np.uint8]:
    kinds = np.full(256, _PLAIN, np.uint8)
    kinds[0x7F:] = kinds[ord("'")] = kinds[ord("\\")] = _BAD
    kinds[ord('"')] = _QUOTE
    for octet, kind in _STRUCTURAL.items():
        kinds[octet] = kind
    return kinds


_KIND_OF = _kinds()
_ZERO = np.zeros(1, np.int64)
_SHAPE_KINDS = _KIND_OF[np.frombuffer(_SHAPE, np.uint8)]


class FlatTexts(NamedTuple):
    """The arguments of each run."""

    json: ByteRanges
    """The body up to and including the keyword arguments: ``[[1], {"a": 2}``."""
    args_reprs: ByteRanges
    kwargs_reprs: ByteRanges


def flat(payloads: ByteRanges, longest: int) -> NDArray[np.bool_]:
    """Return which payloads are flat and shorter than ``longest`` bytes; they follow each other in their buffer."""
    starts, ends = payloads.start, payloads.start + payloads.length
    kinds = _KIND_OF[payloads.buffer]

    def counted(found: NDArray[np.bool_]) -> Int64s:
        until: Int64s = np.concatenate((_ZERO, found.cumsum(dtype=np.int64)))
        counts: Int64s = until[ends] - until[starts]
        return counts

    structural = (kinds > _PLAIN) & (kinds < _QUOTE)
    right: NDArray[np.bool_] = (payloads.length < longest) & (counted(kinds == _BAD) == 0)
    right &= (counted(structural) == len(_SHAPE)) & (counted(kinds == _QUOTE) % 2 == 0)
    if right.any():
        inside = np.repeat(right, payloads.length) & structural
        at = np.flatnonzero(inside).reshape(-1, len(_SHAPE))
        shaped = (kinds[at] == _SHAPE_KINDS).all(axis=1)
        shaped &= (at[:, 0] == starts[right]) & (at[:, 1] == at[:, 0] + 1)
        shaped &= (at[:, 5] == ends[right] - 1) & (at[:, 4] == at[:, 5] - 1)
        right[right] = shaped
    return right


def encoded(
    payloads: ByteRanges,
    scan: Callable[[str, int], tuple[Any, int]],
    to_json: Callable[[Any], str],
    check: Callable[..., Any] | None,
) -> FlatTexts | None:
    """Encode flat payloads (at least one); None if one is not JSON, or ``check`` refuses the arguments of one.

    ``scan``: decodes JSON at an offset; ``to_json``: encodes as Celery does. Each is called once.
    """
    text = f"[{_listed(payloads)}]"
    try:
        values, end = scan(text, 0)
        if end != len(text) or len(values) != len(payloads.length):
            return None
        if check is not None:
            for args, kwargs in values:
                check(*args, **kwargs)
    except Exception:  # also what a check of the user's raises: the caller finds out which run it is
        return None
    json = _cut(to_json(values), "}", 3)
    args_reprs = _cut(repr([args for args, _ in values]) + "()", "]", 2)
    kwargs_reprs = _cut(repr([kwargs for _, kwargs in values]), "}", 2)
    if not len(json.length) == len(args_reprs.length) == len(kwargs_reprs.length) == len(values):
        return None
    empty = args_reprs.length == len("[]")
    args_reprs.start[empty] = len(args_reprs.buffer) - len("()")
    return FlatTexts(json, args_reprs, kwargs_reprs)


def _listed(payloads: ByteRanges) -> str:
    """Return the payloads with commas between them."""
    with_commas = np.full(len(payloads.buffer) + len(payloads.length), ord(","), np.uint8)
    payloads.copy_to(with_commas, payloads.start + np.arange(len(payloads.length)))
    return with_commas[:-1].tobytes().decode("ascii")


def _cut(text: str, closing: str, gap: int) -> ByteRanges:
    """Cut a list of flat values after each ``closing``; the next value begins ``gap`` characters behind it."""
    octets = np.frombuffer(text.encode("ascii"), np.uint8)
    ends = np.flatnonzero(octets == ord(closing)) + 1
    if closing == "]":
        ends = ends[:-1]  # the last one closes the list
    starts = np.concatenate((_ZERO + 1, ends[:-1] + gap))
    return ByteRanges(octets, starts, ends - starts)


def in_base64(bodies: ByteRanges, tail: bytes) -> ByteRanges:
    """Return each body with ``tail`` behind it, in base64; one call encodes all."""
    lengths = bodies.length + len(tail)
    groups = -(-lengths // 3)
    starts = (groups.cumsum() - groups) * 3
    octets: Octets = np.zeros(int(groups.sum()) * 3, np.uint8)
    bodies.copy_to(octets, starts)
    repeated(tail, len(lengths)).copy_to(octets, starts + bodies.length)
    found = np.frombuffer(b2a_base64(octets.data, newline=False), np.uint8).copy()
    ends, missing = (starts // 3 + groups) * 4, groups * 3 - lengths
    found[ends[missing >= 1] - 1] = ord("=")
    found[ends[missing == 2] - 2] = ord("=")
    return ByteRanges(found, starts // 3 * 4, groups * 4)


def repeated(text: bytes, count: int) -> ByteRanges:
    """Return ``text`` ``count`` times."""
    return ByteRanges(np.frombuffer(text, np.uint8), np.zeros(count, np.int64), np.full(count, len(text), np.int64))


def big_endian(values: Int64s, width: int) -> Octets:
    """Return each value in ``width`` bytes (4 or 8), one row each."""
    return values.astype(f">u{width}").view(np.uint8).reshape(-1, width)
