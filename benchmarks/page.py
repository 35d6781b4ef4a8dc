"""Writes ``docs/explanation/benchmarks.md`` and its plots from ``results/*.json``: ``python benchmarks/page.py``.

The page contains no hand-written figure.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from report import RESULTS, Target, shown

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "benchmarks.md"
PLOTS = PAGE.parent / "benchmarks"
HEAD = """# Benchmarks

Written by `benchmarks/page.py` from the results of `make bench` or `make bench-full`; nothing here is typed by hand.
Each section names the machine and the load that it had besides: figures of a busy machine are too bad, and only ratios
within one section compare. A *floor* is what the same work costs where it is least, in the same run.
"""
ORDER = ("coldstart", "memory", "engine", "edits", "admin", "dispatch", "shapes", "claims", "peers", "later")
WIDTH, HEIGHT, LEFT, BOTTOM = 640, 300, 70, 44
MARKED = 30
"""Lines with at most this many points mark every point."""


def section(document: dict[str, Any]) -> str:
    """Return the section of one benchmark."""
    machine = document["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in document["versions"].items())
    settings = ", ".join(f"{key} {value}" for key, value in document["settings"].items())
    run = (
        f"`python benchmarks/{document['name']}.py{' --full' if document['full'] else ''}`, {document['at'][:10]}, took"
        f" {document['took_s']:.0f} s. {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB,"
        f" {machine['system']}, Python {machine['python']}; load average {machine['load_before']} before and"
        f" {document['load_after']} after. {versions}.{' Settings: ' + settings + '.' if settings else ''}"
    )
    lines = [
        f"## {document['name']}",
        "",
        run,
        "",
        "| figure | value | target | floor | ratio | how it was measured | what limits it |",
        "|---|--:|--:|--:|--:|---|---|",
    ]
    lines += [row(figure) for figure in document["figures"]]
    for number, (title, points) in enumerate(document["series"].items()):
        if len(points) > 1:
            file = PLOTS / f"{document['name']}-{number}.svg"
            file.write_text(plot(title, points))
            lines += ["", f"![{title}](benchmarks/{file.name})"]
    return "\n".join(lines) + "\n"


def row(figure: dict[str, Any]) -> str:
    """Return the line of one figure."""
    value, unit, floor = figure["value"], figure["unit"], figure["floor"]
    beside = (f"{shown(floor)} {unit}", f"{value / floor:.2f}") if floor else ("", "")
    cells = (
        figure["what"],
        f"{shown(value)} {unit}",
        against(value, unit, figure.get("target")),
        *beside,
        figure["note"],
        figure.get("limit", ""),
    )
    return "| " + " | ".join(cells) + " |"


def against(value: float, unit: str, target: dict[str, Any] | None) -> str:
    """Return the target and, if missed, by how much."""
    if target is None:
        return ""
    wanted = Target(**target)
    bound = f"{'≥' if wanted.at_least else '≤'} {shown(wanted.value)} {unit}"
    return f"{bound}, missed: {value / wanted.value:.2f} of it" if wanted.missed(value) else bound


def plot(title: str, points: list[list[float]]) -> str:
    """Return a line as SVG; the x axis is logarithmic if the points span more than a hundredfold."""
    xs, ys = [point[0] for point in points], [point[1] for point in points]
    logarithmic = min(xs) > 0 and max(xs) / min(xs) > 100
    across = [math.log10(x) for x in xs] if logarithmic else xs
    low, high = min(across), max(across)
    top = max(*ys, 1e-9) * 1.1

    def place(x: float, y: float) -> tuple[float, float]:
        at = LEFT + (x - low) / ((high - low) or 1) * (WIDTH - LEFT - 24)
        return round(at, 1), round(HEIGHT - BOTTOM - y / top * (HEIGHT - BOTTOM - 40), 1)

    places = [place(x, y) for x, y in zip(across, ys, strict=True)]
    marks = "".join(f'<circle cx="{x}" cy="{y}" r="3"/>' for x, y in places if len(places) <= MARKED)
    labels = "".join(
        f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{shown(value)}</text>'
        for (x, _), value in list(zip(places, xs, strict=True))[:: max(1, len(xs) // 6)]
    )
    for share in (0, 0.5, 1):
        _, y = place(low, top * share / 1.1)
        labels += f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{shown(top * share / 1.1)}</text>'
        labels += f'<line x1="{LEFT}" x2="{WIDTH - 24}" y1="{y}" y2="{y}" stroke="#8884"/>'
    path = " ".join(f"{x},{y}" for x, y in places)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        f' font-size="12" fill="#3b6ea5" role="img"><title>{title}</title>'
        f'<text x="{LEFT}" y="20" font-size="14">{title}</text>'
        f'{labels}<polyline points="{path}" fill="none" stroke="#3b6ea5" stroke-width="2"/>{marks}</svg>\n'
    )


def main() -> None:
    """Write page and plots."""
    documents = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    PLOTS.mkdir(parents=True, exist_ok=True)
    for old in PLOTS.glob("*.svg"):
        old.unlink()
    known = [name for name in ORDER if name in documents] + [name for name in documents if name not in ORDER]
    PAGE.write_text("\n".join([HEAD, *(section(documents[name]) for name in known if name != "baseline")]))
    print(f"{PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE}: {', '.join(known)}")


if __name__ == "__main__":
    sys.exit(main())
