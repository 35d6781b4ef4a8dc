"""The Python versions that this package supports, and where this machine has them.

An interpreter counts only after it has answered: a shim of pyenv lies on ``PATH`` also for versions that it refuses to
start. ``python -m tools.pythons`` prints one path a line, the oldest version first.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

SUPPORTED = ("3.11", "3.12", "3.13")
ANSWER = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2], sys.executable)"


def _output(*command: str) -> str:
    """Return what a command prints; nothing if there is no such command, or if it fails."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, stdin=subprocess.DEVNULL)
        return done.stdout.strip()
    return ""


def _folders() -> list[Path]:
    """Return the folders of ``PATH``, then those of pyenv's versions."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    root = _output("pyenv", "root") if shutil.which("pyenv") else ""
    return folders + (sorted(Path(root).glob("versions/*/bin")) if root else [])


def find_pythons() -> dict[str, str]:
    """Return the interpreter of each supported version that this machine has, the oldest version first."""
    folders = _folders()
    pythons = {}
    for version in SUPPORTED:
        candidates = [folder / f"python{version}" for folder in folders]
        if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
            candidates.insert(0, Path(sys.executable))
        for candidate in candidates:
            answer = _output(str(candidate), "-c", ANSWER) if candidate.exists() else ""
            if answer.startswith(f"{version} "):
                pythons[version] = answer.partition(" ")[2]
                break
    return pythons


def line_of_absent(pythons: Collection[str]) -> str:
    """Return a sentence that names the supported versions that are not among ``pythons``; nothing if all are."""
    absent = [version for version in SUPPORTED if version not in pythons]
    return f"Not on this machine, so left out: Python {', '.join(absent)}." if absent else ""


if __name__ == "__main__":
    print(*find_pythons().values(), sep="\n")
