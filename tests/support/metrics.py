"""Metrics as Prometheus reads them."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from query import metrics as query_metrics
from shared.observability import unreadable
from shared.observability.metrics import exposition
from workers import metrics as worker_metrics
from workers.monitoring import beat, queue, redis_memory
from workers.notifications import listener
from workers.sources import metrics as source_metrics

DECLARED = (
    *query_metrics.METRICS,
    *unreadable.METRICS,
    *worker_metrics.METRICS,
    *queue.METRICS,
    *redis_memory.METRICS,
    *beat.METRICS,
    *source_metrics.METRICS,
    *listener.METRICS,
)
"""Every metric that some process shows."""


def shown(registry: CollectorRegistry) -> dict[str, float]:
    """Return what a registry shows now; see `samples`."""
    body, _ = exposition(registry, "")
    return samples(body.decode())


def scraped(url: str, **headers: str) -> dict[str, float]:
    """Return what a URL shows now; see `samples`."""
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as response:
        return samples(response.read().decode())


def samples(text: str) -> dict[str, float]:
    """Return the samples by name and labels, as `name{label="value"}`."""
    return {
        sample.name + _braced(sample.labels): sample.value for family in families(text) for sample in family.samples
    }


def families(text: str) -> Iterator[Family]:
    """Yield the families of an exposition."""
    yield from text_string_to_metric_families(text)


def _braced(labels: dict[str, str]) -> str:
    inside = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
    return f"{{{inside}}}" if inside else ""
