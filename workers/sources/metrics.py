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

CONNECTED = Metric(
    "toolscale_source_connected",
    "gauge",
    "boolean",
    "1: the stream of a source's changes is open; 0: it is not, and the source is listed each minute. An "
    "`mcp.json` has none.",
    ("source",),
)
CONNECTIONS = Metric(
    "toolscale_source_connections_total",
    "counter",
    "connections",
    "Times that this stream was opened; all but the first are reconnections.",
    ("source",),
)
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
METRICS = (CONNECTED, CONNECTIONS, LISTS, RECONCILED)


class SourceMetrics:
    """Counts the lists and connections of the sources of one process, and collects the age of each.

    Safe to use from any thread. The caller registers the collector.
    """

    def __init__(self, registry: CollectorRegistry | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Register the counters in `registry`, by default a new one."""
        registry = CollectorRegistry() if registry is None else registry
        self._clock = clock
        self._connections = counter(CONNECTIONS, registry)
        self._lists = counter(LISTS, registry)
        self._connected: dict[str, float] = {}
        self._reconciled_at: dict[str, float] = {}

    def connected(self, source: str) -> None:
        """Count an opened stream of changes."""
        self._connections.labels(source).inc()
        self._connected[source] = 1.0

    def disconnected(self, source: str) -> None:
        """Record that the stream of changes is closed."""
        self._connected[source] = 0.0

    def listed(self, source: str, result: Result) -> None:
        """Count a list of a source by its result."""
        self._lists.labels(source, result).inc()
        if result == "reconciled" or source not in self._reconciled_at:
            self._reconciled_at[source] = self._clock()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the current gauges of each source."""
        now = self._clock()
        yield gauge(CONNECTED, dict(self._connected))
        yield gauge(RECONCILED, {source: now - at for source, at in list(self._reconciled_at.items())})
