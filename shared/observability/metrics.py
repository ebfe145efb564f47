"""Declaration and exposition of metrics for Prometheus.

Each metric is declared once, as a `Metric`; docs/telemetry-reference.md lists all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeHistogramMetricFamily, GaugeMetricFamily

MetricType = Literal["counter", "gauge", "histogram", "gaugehistogram"]

# From half a millisecond, for a part of a search, to minutes, for a slow server.
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """A family of time series with its name in Prometheus.

    A counter and a histogram belong to one process and start at 0. A gauge is a current value;
    a `gaugehistogram` counts current values below each bound.
    """

    name: str
    kind: MetricType
    unit: str
    description: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = SECONDS


def counter(metric: Metric, registry: CollectorRegistry) -> Counter:
    """Return the counter of this declaration, at 0."""
    return Counter(metric.name, metric.description, metric.labels, registry=registry)


def histogram(metric: Metric, registry: CollectorRegistry) -> Histogram:
    """Return the histogram of this declaration, empty."""
    return Histogram(metric.name, metric.description, metric.labels, registry=registry, buckets=metric.buckets)


def gauge(metric: Metric, value: float | Mapping[str, float]) -> GaugeMetricFamily:
    """Return the current value, or one value per value of the metric's only label."""
    family = GaugeMetricFamily(metric.name, metric.description, labels=metric.labels)
    for label, sample in value.items() if isinstance(value, Mapping) else [(None, value)]:
        family.add_metric([] if label is None else [label], sample)
    return family


def histogram_of(metric: Metric, values: Iterable[float]) -> GaugeHistogramMetricFamily:
    """Return the number of values at or below each bound of the metric."""
    counts = list(values)
    buckets = [(str(bound), float(sum(value <= bound for value in counts))) for bound in metric.buckets]
    family = GaugeHistogramMetricFamily(metric.name, metric.description)
    family.add_metric([], [*buckets, ("+Inf", float(len(counts)))], sum(counts))
    return family


def exposition(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Return all current metrics of a registry, and the content type, negotiated by the Accept header.

    Blocks while the stores behind the gauges are read, so an event loop must not call it.
    """
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
