"""Metrics of the sources of running servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

from prometheus_client import CollectorRegistry

from shared.observability.metrics import Metric, counter, gauge

if TYPE_CHECKING:
    from prometheus_client.metrics_core import GaugeMetricFamily

Result = Literal["reconciled", "failed"]

LISTS = Metric(
    "toolscale_source_lists_total",
    "counter",
    "lists",
    "Polls of a source. `reconciled`: the intents now match it. `failed`: the source, the file or the intent store "
    "was unavailable.",
    ("source", "result"),
)
RECONCILED = Metric(
    "toolscale_source_reconciled_seconds",
    "gauge",
    "seconds",
    "Seconds since the intents last matched a source, or since the first attempt.",
    ("source",),
)
METRICS = (LISTS, RECONCILED)


class SourceMetrics:
    """Counts the lists of the sources of one process, and collects the age of each.

    Safe to use from any thread. The caller registers the collector.
    """

    def __init__(self, registry: CollectorRegistry | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Register the counters in `registry`, by default a new one."""
        registry = CollectorRegistry() if registry is None else registry
        self._clock = clock
        self._lists = counter(LISTS, registry)
        self._reconciled_at: dict[str, float] = {}

    def listed(self, source: str, result: Result) -> None:
        """Count a list of a source by its result."""
        self._lists.labels(source, result).inc()
        if result == "reconciled" or source not in self._reconciled_at:
            self._reconciled_at[source] = self._clock()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the current gauges of each source."""
        now = self._clock()
        yield gauge(RECONCILED, {source: now - at for source, at in list(self._reconciled_at.items())})
