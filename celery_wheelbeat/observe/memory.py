"""Memory of this process: what it may still take, and giving back what it no longer needs. Linux; elsewhere unknown."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")
_ARENA_MAX = -8
"""``M_ARENA_MAX`` of glibc's ``mallopt``."""


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


def share_arena() -> None:
    """Let every thread that begins from now on allocate where the first one does.

    Else each has an arena of its own, the free end of which is never given back: tens of megabytes for each reader of
    a load, and what one of them frees is of no use to any other thread.
    """
    with suppress(OSError, AttributeError):  # a C library other than glibc
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


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
