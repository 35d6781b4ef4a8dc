"""Memory of this process: what it may still take, and giving back what it no longer needs. Linux; elsewhere unknown."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from pathlib import Path

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
