"""Charts as SVG, rendered by the server without script or library; style sheets apply the theme's colours.

The peak of each chart is also given in words, for screen readers. Bounded: at most COLUMNS points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from django.utils.html import format_html

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.utils.safestring import SafeString

COLUMNS = 900
HEIGHT = 120


class Peak(NamedTuple):
    """The largest value and its position."""

    value: float
    index: int


def peak_of(values: Sequence[float]) -> Peak | None:
    """Return the first maximum; None if no value is above zero."""
    value = max(values, default=0)
    return Peak(value, values.index(value)) if value > 0 else None


def area(values: Sequence[float], label: str) -> SafeString:
    """Return counts as an area chart; each column shows the maximum of its values, and the peak is marked."""
    peak = peak_of(values)
    tops = [_height(column, peak) for column in _columns(values)]
    width = max(len(tops), 1)
    path = "".join(f"V{HEIGHT - top:g}h1" for top in tops)
    mark = "" if peak is None else _mark((peak.index + 0.5) * width / len(values))
    return _svg(
        width, label, format_html('<path class="wheelbeat-area" d="M0 {}{}V{}z"/>{}', HEIGHT, path, HEIGHT, mark)
    )


def lines(series: Sequence[Sequence[float]], label: str) -> SafeString:
    """Return series of equal length as lines on one scale."""
    peak = peak_of([value for values in series for value in values])
    width = max(len(series[0]), 2) if series else 2
    paths = [
        format_html(
            '<polyline class="wheelbeat-line wheelbeat-line-{}" points="{}"/>',
            number,
            " ".join(f"{place + 0.5:g},{HEIGHT - _height(value, peak):g}" for place, value in enumerate(values)),
        )
        for number, values in enumerate(series)
    ]
    return _svg(width, label, format_html("{}" * len(paths), *paths) if paths else "")


def _columns(values: Sequence[float]) -> list[float]:
    step = -(-len(values) // COLUMNS) or 1
    return [max(values[begin : begin + step]) for begin in range(0, len(values), step)]


def _height(value: float, peak: Peak | None) -> float:
    return 0 if peak is None else round(value / peak.value * (HEIGHT - 4), 1)


def _mark(x: float) -> SafeString:
    return format_html('<path class="wheelbeat-peak" d="M{} 0v{}"/>', f"{x:g}", HEIGHT)


def _svg(width: int, label: str, content: SafeString | str) -> SafeString:
    return format_html(
        '<svg class="wheelbeat-chart" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
        "{}</svg>",
        width, HEIGHT, label, content,
    )  # fmt: skip
