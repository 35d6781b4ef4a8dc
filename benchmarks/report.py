"""Shared by the benchmarks: machine description, printed table, and JSON for ``docs/explanation/benchmarks.md``.

Each figure names its limiting factor and may have a floor measured in the same run; the ratio to the floor is
comparable between machines.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("celery", "kombu", "numpy", "psycopg", "redis", "django", "django-celery-beat", "celery-redbeat")


SERIES_POINTS = 200
"""Number of points that a plot keeps of a distribution."""


class Target(NamedTuple):
    """Target of a figure."""

    value: float
    at_least: bool

    def missed(self, value: float) -> bool:
        """Return whether ``value`` misses the target."""
        return value < self.value if self.at_least else value > self.value


class Figure(NamedTuple):
    """One measured number."""

    what: str
    value: float
    unit: str
    floor: float | None = None
    """Lower bound for the same work, in the same unit, measured in the same run."""
    target: Target | None = None
    note: str = ""
    """Method and further observations."""
    limit: str = ""
    """Limiting factor."""


def at_most(value: float) -> Target:
    """Return an upper target."""
    return Target(value, at_least=False)


def at_least(value: float) -> Target:
    """Return a lower target."""
    return Target(value, at_least=True)


def machine() -> dict[str, Any]:
    """Return a description of this machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 1),
    }


def versions() -> dict[str, str]:
    """Return the versions of the measured and compared packages."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


class Report:
    """The figures of one benchmark; printed as they are added, written at the end."""

    def __init__(self, name: str, *, full: bool, **settings: Any) -> None:
        self.name = name
        self.figures: list[Figure] = []
        self._series: dict[str, list[list[float]]] = {}
        self._head = {"name": name, "full": full, "machine": machine(), "versions": versions(), "settings": settings}
        self._begun_s = time.monotonic()
        print(f"{name}: {self._head['machine']}", flush=True)

    def add(
        self,
        what: str,
        value: float,
        unit: str,
        *,
        floor: float | None = None,
        target: Target | None = None,
        note: str = "",
        limit: str = "",
    ) -> None:
        """Add one figure and print it. ``limit``: its limiting factor."""
        self.figures.append(Figure(what, float(value), unit, floor, target, note, limit))
        beside = f"   {value / floor:6.2f} × {shown(floor)} {unit}" if floor else ""
        if target is not None:
            sign = "≥" if target.at_least else "≤"
            beside += f"   target {sign} {shown(target.value)}{', MISSED' if target.missed(value) else ''}"
        print(f"  {what:<66} {shown(value):>12} {unit:<10}{beside}  {note}", flush=True)

    def plot(self, name: str, points: list[tuple[float, float]]) -> None:
        """Add a series of points for a plot."""
        self._series[name] = [list(point) for point in points]

    def plot_distribution(self, name: str, values: Sequence[float]) -> None:
        """Add the distribution of ``values`` (value by percentile) for a plot."""
        if len(values):
            ordered = sorted(values)
            shares = [number / SERIES_POINTS for number in range(SERIES_POINTS)] + [0.999, 1.0]
            self.plot(
                f"{name}, by percent of them below", [(100 * share, quantile(ordered, share)) for share in shares]
            )

    def write(self) -> None:
        """Write ``results/<name>.json``."""
        RESULTS.mkdir(exist_ok=True)
        document = {
            **self._head,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "took_s": round(time.monotonic() - self._begun_s, 1),
            "load_after": round(os.getloadavg()[0], 1),
            "figures": [_as_json(figure) for figure in self.figures],
            "series": self._series,
        }
        path = RESULTS / f"{self.name}.json"
        path.write_text(json.dumps(document, indent=1) + "\n")
        print(f"  → {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}", flush=True)


def _as_json(figure: Figure) -> dict[str, Any]:
    return {**figure._asdict(), "target": None if figure.target is None else figure.target._asdict()}


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile ``share`` of ascending values."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def shown(value: float) -> str:
    """Return a number with three significant digits and thousands separators."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def in_process(file: str, *arguments: object) -> Any:
    """Run ``python file arguments…`` and return the JSON of its last line; each measurement gets fresh memory."""
    command = [sys.executable, file, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def resident_bytes(pid: int | str = "self", field: str = "VmRSS") -> int:
    """Return the resident memory of a process, or its peak (``VmHWM``)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def cpu_s(pid: int) -> float:
    """Return user plus system time of a process so far, in seconds."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
