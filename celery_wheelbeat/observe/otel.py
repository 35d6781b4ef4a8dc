"""Export the metrics as observable instruments of OpenTelemetry, if the application uses it in the beat.

Instruments cannot be removed, so each process has one set, which reads the running beat. If the application has not
imported OpenTelemetry's metrics, this module imports nothing and exports nothing.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_wheelbeat import __version__
from celery_wheelbeat.observe.metrics import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from celery_wheelbeat.observe.metrics import Family, Sample

    Status = Callable[[], Mapping[str, Any]]

_SUM = ("sum",)


class Instruments:
    """The instruments of a process. The scheduling thread writes; threads of the application's exporters read."""

    def __init__(self) -> None:
        self._status: Status | None = None
        self._made = False

    def show(self, status: Status) -> None:
        """Export what ``status`` returns at each collection, from now on."""
        self._status = status
        if not self._made and "opentelemetry.metrics" in sys.modules:
            self._made = True
            self._make()

    def hide(self) -> None:
        """Export nothing until the next beat of this process."""
        self._status = None

    def _make(self) -> None:
        from opentelemetry.metrics import get_meter  # noqa: PLC0415 - optional

        meter = get_meter("celery_wheelbeat", __version__)
        for family in FAMILIES:
            unit = "s" if family.name.endswith("_seconds") else ""
            read = partial(self._observations, family)
            if family.kind == "histogram":  # no observable histogram in the API: export Prometheus' series
                buckets, total = partial(read, keep=_is_bucket), partial(read, keep=_is_sum)
                meter.create_observable_counter(f"{family.name}_bucket", [buckets], "", family.help)
                meter.create_observable_counter(f"{family.name}_sum", [total], unit, family.help)
            elif family.kind == "counter":
                meter.create_observable_counter(family.name.removesuffix("_total"), [read], unit, family.help)
            else:
                meter.create_observable_gauge(family.name, [read], unit, family.help)

    def _observations(
        self, family: Family, _options: Any, keep: Callable[[Sample], bool] = lambda _sample: True
    ) -> Iterator[Any]:
        from opentelemetry.metrics import Observation  # noqa: PLC0415 - optional

        status = {} if self._status is None else self._status()
        names = ("le",) if family.kind == "histogram" else family.labels
        for sample in family.read(status) if status else ():
            if keep(sample):
                labels = {} if sample.labels == _SUM else dict(zip(names, sample.labels, strict=True))
                yield Observation(sample.value, labels)


def _is_sum(sample: Sample) -> bool:
    return sample.labels == _SUM


def _is_bucket(sample: Sample) -> bool:
    return not _is_sum(sample)


instruments = Instruments()
"""The instruments of this process."""
