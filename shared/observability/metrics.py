"""Exposition of metrics for Prometheus.

Counters, histograms and gauges are objects beside the code that changes them, in the library's registry of this
process. The values of stores belong to collectors, which read them at each scrape.
"""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector


def registry_with(*collectors: Collector) -> CollectorRegistry:
    """Return a registry of all metrics of this process and of these collectors."""
    registry = CollectorRegistry()
    for collector in (REGISTRY, *collectors):
        registry.register(collector)
    return registry


def exposition(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Return all current metrics of a registry, and the content type, negotiated by the Accept header.

    Blocks while the stores behind the gauges are read, so an event loop must not call it.
    """
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
