"""Metrics as Prometheus reads them."""

from __future__ import annotations

import urllib.request
from collections.abc import Generator, Iterator
from contextlib import contextmanager

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from shared.service.routes import exposition, registry_with


@contextmanager
def counted() -> Generator[dict[str, float]]:
    """Yield a dict that has at the end of the block how much each sample of this process grew in it; see `samples`."""
    grown: dict[str, float] = {}
    before = shown()
    yield grown
    grown.update({name: value - before.get(name, 0.0) for name, value in shown().items()})


def shown(*gauges: Collector) -> dict[str, float]:
    """Return what this process and these collectors show now; see `samples`."""
    body, _ = exposition(registry_with(*gauges), "")
    return samples(body.decode())


def scraped(url: str, **headers: str) -> dict[str, float]:
    """Return what a URL shows now; see `samples`."""
    return samples(scrape(url, **headers))


def scrape(url: str, **headers: str) -> str:
    """Return the exposition of a URL."""
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as response:
        text: str = response.read().decode()
    return text


def samples(text: str) -> dict[str, float]:
    """Return the samples of Toolscale's metrics by name and labels, as `name{label="value"}`."""
    return {
        sample.name + _braced(sample.labels): sample.value for family in families(text) for sample in family.samples
    }


def families(text: str) -> Iterator[Metric]:
    """Yield the families of Toolscale's metrics in an exposition."""
    return (found for found in text_string_to_metric_families(text) if found.name.startswith("toolscale_"))


def _braced(labels: dict[str, str]) -> str:
    inside = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
    return f"{{{inside}}}" if inside else ""
