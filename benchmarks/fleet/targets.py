"""Targets of a fleet on two cores, and whether the stored results reach them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.fleet.results import Crowd, Findables, MetricsBySize, Results, Storm


@dataclass(frozen=True, slots=True)
class Target:
    """A bound, inclusive, and what was measured."""

    what: str
    bound: float
    measured: float
    unit: str = ""

    @property
    def is_met(self) -> bool:
        """Return whether the bound was kept."""
        return self.measured <= self.bound


def targets(results: Results) -> list[Target]:
    """Return the targets of all parts that were measured."""
    return [
        *(_storm(results.storm) if results.storm else ()),
        *(_crowd(results.crowd) if results.crowd else ()),
        *(_findable(results.findable) if results.findable else ()),
        *(_metrics(results.metrics) if results.metrics else ()),
    ]


def _storm(found: Storm) -> Iterator[Target]:
    for run in found.runs:
        name = f"{found.events:,} events for {found.servers} servers, {run.way}"
        yield Target(f"{name}: until the index follows", 30, run.drained_s, " s")
        yield Target(f"{name}: listings", 3 * found.servers, run.listings)
        yield Target(f"{name}: tools written", 0, run.tools_written)
        yield Target(f"{name}: find_tool meanwhile, p95", 200, run.answers.p95, " ms")


def _crowd(found: Crowd) -> Iterator[Target]:
    replicas = found.replicas
    # a tool has two forms to count, and two texts to embed
    texts = 2 * replicas.tools // replicas.servers
    yield Target(f"{replicas.servers:,} replicas: texts counted", texts, replicas.counted)
    yield Target(f"{replicas.servers:,} replicas: texts embedded", texts, replicas.embedded)
    first = [resync for resync in found.resyncs if resync.listing == "first"]
    for resync in (resync for resync in first if resync.servers == replicas.servers):
        name = f"resync of {resync.servers:,} unchanged servers, protocol {resync.protocol}"
        yield Target(name, 60, resync.seconds, " s")
        yield Target(f"{name}: memory of the worker", 400, resync.peak_mib, " MiB")


def _findable(found: Findables) -> Iterator[Target]:
    for run in found.runs:
        yield Target(f"a {run.tools}-tool server findable, load: {run.load}, p95", 2_000, run.answers.p95, " ms")


def _metrics(found: MetricsBySize) -> Iterator[Target]:
    for size in found.sizes:
        yield Target(f"token metrics at {size.tools:,} tools, p99", 10, size.token_metrics.p99, " ms")
