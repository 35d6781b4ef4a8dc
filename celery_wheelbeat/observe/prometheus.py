"""Render the metrics in Prometheus' text formats with ``prometheus_client`` (extra ``prometheus``).

Uses its own registry, because the default one belongs to the application. It also contains the families of the process
(memory, processor time, open files).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder

from celery_wheelbeat.observe.metrics import samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from celery_wheelbeat.observe.metrics import Family, Sample


class Exposition:
    """Renders the document that ``status`` returns at each scrape."""

    def __init__(self, status: Callable[[], Mapping[str, Any]]) -> None:
        self._status = status
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return body and content type, in the format that the header ``Accept`` prefers."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self._registry), content_type

    def collect(self) -> Iterator[Any]:
        """Yield the families (collector interface of ``prometheus_client``)."""
        status = self._status()
        if status:
            for family, found in samples(status):
                yield _histogram(family, found) if family.kind == "histogram" else _plain(family, found)

    def describe(self) -> list[Any]:
        """Return nothing: tests check the names against the table, the registry does not."""
        return []


def _plain(family: Family, found: list[Sample]) -> Any:
    make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    made = make(family.name, family.help, labels=family.labels)
    for sample in found:
        made.add_metric(sample.labels, sample.value)
    return made


def _histogram(family: Family, found: list[Sample]) -> Any:
    *buckets, total = found
    made = HistogramMetricFamily(family.name, family.help)
    made.add_metric((), [(bucket.labels[0], bucket.value) for bucket in buckets], total.value)
    return made
