"""What deserves a look after an import, gathered so that a thousand tasks with one remark are not a thousand lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES_SHOWN = 20


class Notes:
    """Remarks by their text; of each, the first NAMES_SHOWN names and how many there are."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}
        self._counts: dict[str, int] = {}

    def note(self, name: str, text: str) -> None:
        """Remember a remark about ``name``."""
        names = self._names.setdefault(text, [])
        self._counts[text] = self._counts.get(text, 0) + 1
        if len(names) < NAMES_SHOWN:
            names.append(name)

    def clear(self) -> None:
        """Forget everything."""
        self._names.clear()
        self._counts.clear()

    def lines(self) -> Iterator[str]:
        """Yield one line per name and remark, and one for those that are not shown."""
        for text, names in self._names.items():
            for name in names:
                yield f"Note: {name}: {text}."
            more = self._counts[text] - len(names)
            if more:
                yield f"Note: and {more} more of these."
