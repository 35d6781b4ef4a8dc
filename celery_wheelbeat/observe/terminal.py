"""One line on the terminal that whoever started a beat by hand looks at; nothing where there is no terminal.

Celery puts a log in the place of ``sys.stderr``, at a level that ``celery beat`` does not show by default, so the real
standard error is asked. A terminal that takes nothing at present (Ctrl-S) is passed by: nobody waits for it.
"""

from __future__ import annotations

import select
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO

ERASE = "\x1b[K"


class TerminalLine:
    """A line that is written over and over, and leaves nothing behind."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream if stream is not None and _is_terminal(stream) else None

    @classmethod
    def of_process(cls) -> TerminalLine:
        """Return the line on the standard error that the process was started with."""
        return cls(sys.__stderr__)

    @property
    def visible(self) -> bool:
        """Whether there is a terminal."""
        return self._stream is not None

    def show(self, text: str) -> None:
        """Replace the line. The cursor goes back to its start, so that a line of a log takes its place."""
        stream = self._stream
        if stream is None:
            return
        try:
            if select.select([], [stream], [], 0)[1]:
                stream.write(f"{ERASE}{text}\r")
                stream.flush()
        except (OSError, ValueError):  # the terminal is gone
            self._stream = None

    def clear(self) -> None:
        """Take the line away."""
        self.show("")


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed, as in a daemon
        return False
