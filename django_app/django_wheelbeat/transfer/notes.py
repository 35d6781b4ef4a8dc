"""Remarks of an import, grouped by text, so that a thousand tasks with the same remark take one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES_SHOWN = 20


class Notes:
    """Remarks by text; each with its first NAMES_SHOWN names and the number of all."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}
        self._counts: dict[str, int] = {}

    def note(self, name: str, text: str) -> None:
        """Add a remark about ``name``."""
        names = self._names.setdefault(text, [])
        self._counts[text] = self._counts.get(text, 0) + 1
        if len(names) < NAMES_SHOWN:
            names.append(name)

    def clear(self) -> None:
        """Remove all remarks."""
        self._names.clear()
        self._counts.clear()

    def lines(self) -> Iterator[str]:
        """Yield one line per shown name and remark, and one for the names not shown."""
        for text, names in self._names.items():
            for name in names:
                yield f"Note: {name}: {text}."
            more = self._counts[text] - len(names)
            if more:
                yield f"Note: and {more} more of these."
