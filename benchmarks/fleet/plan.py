"""How much a run measures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of a run; times are in seconds, rates in events or questions a second."""

    name: str
    seed: int = 20260704
    storm_servers: int = 100
    storm_tools: int = 20
    """Tools of each server of the storm."""
    storm_events: int = 10_000
    storm_repeats: int = 10
    """Repetitions of each event of the storm: 10 makes nine in ten duplicates."""
    replicas: int = 1_000
    replica_tools: int = 20
    wide_servers: int = 100
    wide_tools: int = 100
    """Fewer replicas with more tools each, to see what a resync costs by the tool."""
    haystack_share: int = 1
    """The whole corpus is ingested with every `haystack_share`th server."""
    sample_share: int = 8
    """Comparisons of workers, threads and stages take every `sample_share`th server."""
    catalogue_sizes: tuple[int, ...] = (1_000, 10_000, 100_000)
    tools_per_server: int = 50
    event_rate: float = 10.0
    question_rate: float = 10.0
    metrics_s: float = 62.0
    """How long token metrics are watched at each size: longer than the ledger goes without reading everything."""
    late_servers: int = 20
    """Servers that come up one after the other, idle and under load, to see how long each takes to be findable."""
    load_servers: int = 20


FULL = Plan("full")
QUICK = Plan(
    "quick",
    storm_servers=4,
    storm_tools=3,
    storm_events=40,
    replicas=6,
    replica_tools=3,
    wide_servers=2,
    wide_tools=5,
    haystack_share=400,
    sample_share=800,
    catalogue_sizes=(50, 100),
    tools_per_server=10,
    metrics_s=1.0,
    late_servers=2,
    load_servers=2,
)
