"""Run ids rendered for thousands of runs at once: UUIDs of version 5 (RFC 9562) as columns of bytes.

The result equals ``jobs.identity.run_id`` for every run.
"""

from __future__ import annotations

import hashlib
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from celery_wheelbeat.dispatch.messages import sha1
from celery_wheelbeat.dispatch.messages.byte_ranges import column
from celery_wheelbeat.jobs.identity import Int64s, _namespace_uuid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
Octets = NDArray[np.uint8]
"""Rows of bytes, all of one width."""
_FIRE_DIGITS = 13
_FIRE_RANGE = (10 ** (_FIRE_DIGITS - 1), 10**_FIRE_DIGITS)
_ID_END = 10**17
"""Job ids below this fit, with the namespace, into one block of SHA-1."""
_POWERS_OF_TEN = 10 ** np.arange(1, 17)
_FOUR_DIGITS = np.array([b"%04d" % number for number in range(10_000)]).view("V4")


_GROUPS = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
"""Ranges of the 32 hex digits of a UUID between its hyphens."""


def uuid_octets(octets: Octets, version: int) -> Octets:
    """Return UUIDs of ``version`` (RFC 9562) as text, n × 36. ``octets`` (n × 16) is modified."""
    octets[:, 6] = octets[:, 6] & 0x0F | version << 4
    octets[:, 8] = octets[:, 8] & 0x3F | 0x80
    digits = np.frombuffer(octets.tobytes().hex().encode(), np.uint8).reshape(-1, 32)
    text = np.full((len(octets), 36), ord("-"), np.uint8)
    for hyphens, (start, stop) in enumerate(_GROUPS):
        column(text, start + hyphens, stop - start)[:] = column(digits, start, stop - start)
    return text


def repeated(values: Int64s) -> tuple[Int64s, Int64s]:
    """Run-length encode ``values`` (at least one): the value and the length of each stretch."""
    begins = np.concatenate(([0], np.flatnonzero(values[1:] != values[:-1]) + 1))
    return values[begins], np.diff(begins, append=len(values))


def texts_of(rows: Octets) -> list[bytes]:
    """Return each row as ``bytes``."""
    cells: list[bytes] = rows.reshape(-1).view(f"V{rows.shape[1]}").tolist()
    return cells


def rows_of(texts: Sequence[bytes]) -> Octets:
    """Return texts of equal length (at least one) as rows."""
    return np.frombuffer(b"".join(texts), np.uint8).reshape(len(texts), -1)


def _within(values: Int64s, low: int, end: int) -> bool:
    return int(values.min()) >= low and int(values.max()) < end


def _digits(values: Int64s, count: int) -> Octets:
    """Return the last ``count`` decimal digits of each value (≥ 0), n × ``count`` octets of text."""
    groups = -(-count // 4)
    text = np.empty((len(values), groups), "V4")
    for group in range(groups - 1, -1, -1):
        values, last_four = np.divmod(values, 10_000)
        text[:, group] = _FOUR_DIGITS[last_four]
    return np.ascontiguousarray(text.view(np.uint8)[:, 4 * groups - count :])


class RunIds:
    """Renders the run ids of one namespace: the same text as ``run_id``, a few times faster."""

    def __init__(self, namespace: str, own: Mapping[int, str] = MappingProxyType({})) -> None:
        """``own``: job id → task id of one-off runs, whose ids were made when they were stored."""
        self.namespace = namespace
        self.own = own
        self._begun = hashlib.sha1(_namespace_uuid(namespace).bytes, usedforsecurity=False)
        """SHA-1 state after the namespace, copied for each id: the start is half the cost of a short hash."""

    def of_monitors(self, ids: Int64s, fire_ms: Int64s) -> Octets:
        """Return the run ids of ``monitor:{ids[i]}`` at ``fire_ms[i]``, n × 36 octets of text."""
        if len(ids) < sha1.WORTH_IT or not (_within(ids, 0, _ID_END) and _within(fire_ms, *_FIRE_RANGE)):
            return self.of_names(map(b"monitor:%d@%d".__mod__, zip(ids.tolist(), fire_ms.tolist(), strict=True)))
        begun = _namespace_uuid(self.namespace).bytes + b"monitor:"
        blocks = np.empty((len(ids), sha1.BLOCK_BYTES), np.uint8)
        distinct_fires, times = repeated(fire_ms)
        fires = np.repeat(column(_digits(distinct_fires, _FIRE_DIGITS), 0, _FIRE_DIGITS), times)
        digit_counts = np.searchsorted(_POWERS_OF_TEN, ids, side="right") + 1
        distinct = np.flatnonzero(np.bincount(digit_counts)).tolist()
        for digits in distinct:
            end = len(begun) + digits + 1 + _FIRE_DIGITS
            same = begun + bytes(digits) + b"@" + bytes(_FIRE_DIGITS) + sha1.padding(end)
            rows = np.flatnonzero(digit_counts == digits) if len(distinct) > 1 else None
            alike = np.full(len(ids) if rows is None else len(rows), np.frombuffer(same, "V64"))
            made = alike.view(np.uint8).reshape(-1, sha1.BLOCK_BYTES)
            numbers = _digits(ids if rows is None else ids[rows], digits)
            column(made, len(begun), digits)[:] = column(numbers, 0, digits)
            column(made, end - _FIRE_DIGITS, _FIRE_DIGITS)[:] = fires if rows is None else fires[rows]
            if rows is None:
                blocks = made
            else:
                column(blocks, 0, sha1.BLOCK_BYTES)[rows] = alike
        return uuid_octets(sha1.digests(blocks)[:, :16].copy(), version=5)

    def render(self, keys: Sequence[str], fire_ms: Int64s, suffix: str = "") -> list[str]:
        """Return the run ids of ``keys[i]`` at ``fire_ms[i]``."""
        names = [f"{key}@{fire}{suffix}".encode() for key, fire in zip(keys, fire_ms.tolist(), strict=True)]
        return [cell.decode("ascii") for cell in texts_of(self.of_names(names))]

    def of_names(self, names: Iterable[bytes]) -> Octets:
        """Return the run ids of names like ``monitor:42@1764000000000``, n × 36 octets of text.

        RFC 9562, version 5: the first 16 bytes of SHA-1 over namespace and name.
        """
        begun, digests = self._begun, []
        for name in names:
            sha1 = begun.copy()
            sha1.update(name)
            digests.append(sha1.digest())
        return uuid_octets(np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 20)[:, :16].copy(), version=5)
