"""The initial load as the scheduling thread sees it: is there room, how far is it, and what remains to do at its end.

Says something every few seconds, so that whoever waits knows for what: on the terminal that the beat was started from,
and in the log. It must never hold a tick up.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import select
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from celery_wheelbeat.errors import TooManyJobs
from celery_wheelbeat.observe.status import ColdStart

if TYPE_CHECKING:
    from typing import TextIO

    from celery_wheelbeat.engine.engine import Engine

logger = logging.getLogger("celery.beat")

TERMINAL_S = 1.0
LOG_S = 10.0
"""Seconds between two lines about the progress: somebody waits at a terminal, a log is read later."""


class Loading:
    """One load. Owned by the scheduling thread."""

    def __init__(self, engine: Engine, terminal: TerminalLine | None = None) -> None:
        self.jobs = 0
        """How many monitors the database is thought to have."""
        self.done: ColdStart | None = None
        """The load as it ended; None before."""
        self._engine = engine
        self._terminal = terminal or TerminalLine.of_process()
        self._before = 0
        """Jobs that the engine held before: entries."""
        self._begun_s = self._shown_s = self._logged_s = 0.0

    def begin(self, jobs: int, text_bytes: float, now_s: float) -> None:
        """Make room for about ``jobs``; raises ``TooManyJobs`` where there is none."""
        max_jobs = self._engine.config.max_jobs
        reason = refusal(jobs, text_bytes, max_jobs=max_jobs, available_bytes=available_bytes())
        if reason is not None:
            raise TooManyJobs(f"beat: {reason}")
        self.jobs, self._before = jobs, len(self._engine)
        self._begun_s = self._shown_s = self._logged_s = now_s
        self._engine.expect(jobs)
        self._show(now_s)

    def go_on(self, now_s: float) -> None:
        """Say how far it is, when it is time."""
        if now_s - self._shown_s >= TERMINAL_S:
            self._shown_s = now_s
            self._show(now_s)
        if now_s - self._logged_s >= LOG_S:
            self._logged_s = now_s
            logger.info("beat: Read %s of about %s monitors; %s", *self._progress(now_s))

    def end(self, now_s: float) -> None:
        """Everything is there."""
        self._terminal.clear()
        settle()
        took_s = ""
        if self._begun_s:
            self.done = ColdStart(len(self._engine), round(now_s - self._begun_s, 3))
            took_s = f" in {self.done.took_s:.1f} s"
        logger.info("beat: %d jobs loaded%s", len(self._engine), took_s)

    def _show(self, now_s: float) -> None:
        self._terminal.show("beat: Read {} of about {} monitors; {}".format(*self._progress(now_s)))

    def _progress(self, now_s: float) -> tuple[str, str, str]:
        """Return how many are read, how many there are, and how it goes on."""
        done, passed_s = max(0, len(self._engine) - self._before), now_s - self._begun_s
        rate = done / passed_s if passed_s > 0 else 0.0
        pace = f"{rate:,.0f}/s, {max(0, self.jobs - done) / rate:.0f} s to go" if rate else "just begun"
        return f"{done:,}", f"{self.jobs:,}", pace


JOB_BYTES = 100
"""What a job takes beside its name and arguments, with the room that tables and wheel need to grow."""
MIN_CHECKED_JOBS = 100_000
"""Below this the process itself is larger than its jobs, and the statistics of the database may be stale."""


def needed_bytes(jobs: int, text_bytes: float) -> int:
    """Return the memory that ``jobs`` need whose names and arguments have ``text_bytes`` on average."""
    return round(jobs * (JOB_BYTES + text_bytes))


def refusal(jobs: int, text_bytes: float, *, max_jobs: int, available_bytes: int | None) -> str | None:
    """Say why ``jobs`` monitors cannot be held, or None; ``available_bytes`` is None where that is not known."""
    if jobs > max_jobs:
        return (
            f"the table has about {jobs:,} monitors, wheelbeat_max_jobs allows {max_jobs:,}: raise it, or share the"
            " monitors among several beats"
        )
    needed = needed_bytes(jobs, text_bytes)
    if jobs >= MIN_CHECKED_JOBS and available_bytes is not None and needed > available_bytes:
        return (
            f"about {jobs:,} monitors need {needed / 1e9:.1f} GB ({JOB_BYTES} bytes each, and {text_bytes:.0f} of name"
            f" and arguments), but {available_bytes / 1e9:.1f} GB are available to this process: give it more memory,"
            " or share the monitors among several beats"
        )
    return None


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


_MEMINFO = Path("/proc/meminfo")
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")
_MALLOPT = ((-8, 1), (-3, 32 << 20), (-1, 64 << 20))
"""What glibc's ``mallopt`` is told: M_ARENA_MAX; M_MMAP_THRESHOLD and M_TRIM_THRESHOLD in bytes, the most that glibc
arrives at by itself."""


def available_bytes(meminfo: Path = _MEMINFO, groups: Path = _GROUPS, own_group: Path = _OWN_GROUP) -> int | None:
    """Return what this process may take until the host or its control group (v2) is full; None where unknown."""
    found = []
    with suppress(OSError, ValueError, IndexError, StopIteration):
        line = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:"))
        found.append(int(line.split()[1]) * 1024)
    with suppress(OSError, ValueError, IndexError):
        group = groups / own_group.read_text().split("::", 1)[1].strip().lstrip("/")
        while True:
            found += _room_in(group)
            if group == groups:
                break
            group = group.parent
    return min(found, default=None)


def prepare() -> None:
    """Before the first thread and a load: let all threads allocate in one place, and keep what they free for the next.

    Else each thread has an arena of its own, the free end of which is never given back: tens of megabytes for each
    reader of a load, and what one of them frees is of no use to any other. And the buffers of each block would be taken
    from the system anew, page by page.
    """
    with suppress(OSError, AttributeError):  # a C library other than glibc
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in _MALLOPT:
            mallopt(parameter, value)


def settle() -> None:
    """After a load: take its objects out of the garbage collector's sight, and give freed memory back to the system."""
    gc.collect()
    gc.freeze()  # hundreds of thousands of slots would be walked in every full collection
    with suppress(OSError, AttributeError):  # a C library other than glibc
        ctypes.CDLL(None).malloc_trim(0)


def _room_in(group: Path) -> list[int]:
    """Return how much is left in one control group: its limit, less what is used and cannot be dropped."""
    with suppress(OSError, ValueError, StopIteration):
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        cached = next(
            int(line.split()[1])
            for line in (group / "memory.stat").read_text().splitlines()
            if line.startswith("inactive_file ")
        )
        return [max(0, limit - used + cached)]
    return []
