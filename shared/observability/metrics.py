"""How metrics are declared, kept and shown, for Prometheus.

Each is declared once, as a `Metric`, in `workers/metrics.py` or `query/metrics.py`; docs/telemetry.md lists them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeHistogramMetricFamily, GaugeMetricFamily

MetricType = Literal["counter", "gauge", "histogram", "gaugehistogram"]

# From half a millisecond, what a part of a search takes, to the minutes that a slow server may.
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """A family of time series under the name that Prometheus knows it by.

    A counter and a histogram belong to one process and begin at 0 with it. A gauge says what is now; one of
    kind `gaugehistogram` says of how many things a value lies below each bound.
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
    """Return what is now: one value, or one for each value of the metric's only label."""
    family = GaugeMetricFamily(metric.name, metric.description, labels=metric.labels)
    for label, sample in value.items() if isinstance(value, Mapping) else [(None, value)]:
        family.add_metric([] if label is None else [label], sample)
    return family


def histogram_of(metric: Metric, values: Iterable[float]) -> GaugeHistogramMetricFamily:
    """Return how many of these values lie at or below each bound of the metric."""
    counts = list(values)
    buckets = [(str(bound), float(sum(value <= bound for value in counts))) for bound in metric.buckets]
    family = GaugeHistogramMetricFamily(metric.name, metric.description)
    family.add_metric([], [*buckets, ("+Inf", float(len(counts)))], sum(counts))
    return family


def exposition(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Return all metrics of a registry as they are now, and the content type, as an Accept header wishes.

    It may take as long as the stores that gauges are read from: not for an event loop.
    """
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
