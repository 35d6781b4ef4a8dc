"""One setting: its type, unit and bounds, and how a given value is read. Pure."""

from __future__ import annotations

import math
from dataclasses import field
from datetime import timedelta
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """Type and bounds of one setting. ``kind``: ``float int bool str``, or ``tuple`` for a list of texts."""

    kind: type
    doc: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[object, ...] = ()
    alone: bool = False
    """Whether a text alone is a list of one."""

    def expected(self) -> str:
        """Return the valid values in words."""
        if self.choices:
            return "one of " + ", ".join(repr(choice) for choice in self.choices)
        if self.kind is bool:
            return "True or False"
        if self.kind is str:
            return "text"
        if self.kind is tuple:
            return "a list of texts"
        noun = "a whole number" if self.kind is int else "a number"
        unit = f" of {self.unit}" if self.unit else ""
        return f"{noun}{unit} from {self.low:,} to {self.high:,}"

    def read(self, value: object) -> object:
        """Return ``value`` converted to ``kind``; raises ``ValueError`` if it is not valid."""
        if isinstance(value, timedelta) and self.unit == "seconds":
            value = value.total_seconds()
        if self.kind in (int, float):
            value = self._number(value)
        elif self.kind is tuple:
            value = _texts([value] if self.alone and isinstance(value, str) else value)
        elif not isinstance(value, self.kind) or value == "":
            raise ValueError
        if self.choices and value not in self.choices:
            raise ValueError
        return value

    def _number(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < math.inf:
            raise ValueError
        if self.kind is int and value != int(value):
            raise ValueError
        if (self.low is not None and value < self.low) or (self.high is not None and value > self.high):
            raise ValueError
        return self.kind(value)  # type: ignore[no-any-return]  # int or float


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple, set, frozenset)) or not all(isinstance(one, str) and one for one in value):
        raise ValueError
    return tuple(sorted(value) if isinstance(value, (set, frozenset)) else value)


def setting(default: object, kind: type, doc: str, **limits: Any) -> Any:
    return field(default=default, metadata={"setting": Setting(kind, doc, **limits)})
