"""The initial load on the scheduling thread: memory check and progress reports.

Reports progress on the terminal that started the beat (every ``TERMINAL_S``) and in the log (every ``LOG_S``). It must
never delay a tick.
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
"""Seconds between two progress lines, on the terminal and in the log."""


JOB_BYTES = 100
"""Memory of one job without its name and arguments, including spare capacity of tables and wheel."""
MIN_CHECKED_JOBS = 100_000
"""Fewer jobs are not checked: the process is larger than its jobs, and statistics of the database may be stale."""
ERASE = "\x1b[K"
_MEMINFO = Path("/proc/meminfo")
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")
_MALLOPT = ((-8, 1), (-3, 32 << 20), (-1, 64 << 20))
"""Arguments of glibc's ``mallopt``: M_ARENA_MAX = 1; M_MMAP_THRESHOLD and M_TRIM_THRESHOLD in bytes, the maxima of
glibc's own dynamic adjustment."""


class Loading:
    """Progress of one load."""

    def __init__(self, engine: Engine, terminal: TerminalLine | None = None) -> None:
        self.jobs = 0
        """Estimated number of monitors in the database."""
        self.done: ColdStart | None = None
        """Result of the load; None until it has ended."""
        self._engine = engine
        self._terminal = terminal or TerminalLine.of_process()
        self._before = 0
        """Jobs that the engine held before the load: entries."""
        self._begun_s = self._shown_s = self._logged_s = 0.0

    def begin(self, jobs: int, text_bytes: float, now_s: float) -> None:
        """Reserve space for about ``jobs``; raises ``TooManyJobs`` if memory or ``wheelbeat_max_jobs`` is too small."""
        max_jobs = self._engine.config.max_jobs
        reason = refusal(jobs, text_bytes, max_jobs=max_jobs, available_bytes=available_bytes())
        if reason is not None:
            raise TooManyJobs(f"beat: {reason}")
        self.jobs, self._before = jobs, len(self._engine)
        self._begun_s = self._shown_s = self._logged_s = now_s
        self._engine.expect(jobs)
        self._show(now_s)

    def go_on(self, now_s: float) -> None:
        """Report progress when it is due."""
        if now_s - self._shown_s >= TERMINAL_S:
            self._shown_s = now_s
            self._show(now_s)
        if now_s - self._logged_s >= LOG_S:
            self._logged_s = now_s
            logger.info("beat: Read %s of about %s monitors; %s", *self._progress(now_s))

    def end(self, now_s: float) -> None:
        """Finish the load: clear the terminal line, log number and duration."""
        self._terminal.clear()
        took_s = ""
        if self._begun_s:
            self.done = ColdStart(len(self._engine), round(now_s - self._begun_s, 3))
            took_s = f" in {self.done.took_s:.1f} s"
        logger.info("beat: %d jobs loaded%s", len(self._engine), took_s)

    def _show(self, now_s: float) -> None:
        self._terminal.show("beat: Read {} of about {} monitors; {}".format(*self._progress(now_s)))

    def _progress(self, now_s: float) -> tuple[str, str, str]:
        """Return monitors read, monitors expected, and rate with time left, as text."""
        done, passed_s = max(0, len(self._engine) - self._before), now_s - self._begun_s
        rate = done / passed_s if passed_s > 0 else 0.0
        pace = f"{rate:,.0f}/s, {max(0, self.jobs - done) / rate:.0f} s to go" if rate else "just begun"
        return f"{done:,}", f"{self.jobs:,}", pace


def needed_bytes(jobs: int, text_bytes: float) -> int:
    """Return the bytes that ``jobs`` need if names and arguments take ``text_bytes`` per job on average."""
    return round(jobs * (JOB_BYTES + text_bytes))


def refusal(jobs: int, text_bytes: float, *, max_jobs: int, available_bytes: int | None) -> str | None:
    """Return why ``jobs`` monitors do not fit, or None if they do; ``available_bytes`` None = unknown, not checked."""
    if jobs > max_jobs:
        return (
            f"the table has about {jobs:,} monitors, wheelbeat_max_jobs allows {max_jobs:,}: raise it, or move some of"
            " the monitors to another database; several beats of one database load all of them each"
        )
    needed = needed_bytes(jobs, text_bytes)
    if jobs >= MIN_CHECKED_JOBS and available_bytes is not None and needed > available_bytes:
        return (
            f"about {jobs:,} monitors need {needed / 1e9:.1f} GB ({JOB_BYTES} bytes each, and {text_bytes:.0f} of name"
            f" and arguments), but {available_bytes / 1e9:.1f} GB are available to this process: give it more memory,"
            " or move some of the monitors to another database; several beats of one database load all of them each"
        )
    return None


class TerminalLine:
    """One terminal line that each update overwrites; invisible on anything but a terminal."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream if stream is not None and _is_terminal(stream) else None

    @classmethod
    def of_process(cls) -> TerminalLine:
        """Return a line on the process's original standard error."""
        return cls(sys.__stderr__)

    def show(self, text: str) -> None:
        """Replace the line and return the cursor to its start, so that a log line overwrites it. Never blocks."""
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
        """Erase the line."""
        self.show("")


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed, as in a daemon
        return False


def available_bytes(meminfo: Path = _MEMINFO, groups: Path = _GROUPS, own_group: Path = _OWN_GROUP) -> int | None:
    """Return the bytes this process may still allocate on its host and in its control groups (v2); None if unknown."""
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
    """Make all threads allocate from one arena that keeps freed memory. Call before the first thread and the load.

    For the process of a standalone beat only, like ``settle``: both change the whole process. One arena saves 10
    to 20 bytes a job at three million jobs (decision 14).
    By default glibc gives each thread its own arena and never returns the arena's free end: tens of megabytes per
    reader of a load, which no other thread can use. Larger thresholds also avoid fetching the buffers of each block
    from the system again, page by page.
    """
    with suppress(OSError, AttributeError):  # a C library other than glibc
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in _MALLOPT:
            mallopt(parameter, value)


def settle() -> None:
    """Freeze the loaded objects for the garbage collector and return freed memory to the system. Call after a load."""
    gc.collect()
    gc.freeze()  # else every full collection walks hundreds of thousands of slots
    with suppress(OSError, AttributeError):  # a C library other than glibc
        ctypes.CDLL(None).malloc_trim(0)


def _room_in(group: Path) -> list[int]:
    """Return the free bytes of one control group: its limit minus memory in use, without inactive page cache.

    Empty if the group has no limit.
    """
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
