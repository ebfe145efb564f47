"""Results of a run as stored in JSON. The report is rendered from these values only."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from benchmarks.throughput.machine import Conditions, Machine
from benchmarks.throughput.plan import Plan


class Frozen(BaseModel):
    """A value that is written once."""

    model_config = ConfigDict(frozen=True)


class Spread(Frozen):
    """A number over the repetitions of a run."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of these values, rounded to a thousandth."""
        return cls(
            median=round(statistics.median(values), 3),
            lowest=round(min(values), 3),
            highest=round(max(values), 3),
        )


class Latency(Frozen):
    """Percentiles of single calls in ms, each taken within a repetition."""

    p50: Spread
    p95: Spread
    highest: Spread

    @classmethod
    def of(cls, repetitions: Sequence[Sequence[float]]) -> Latency:
        """Return the percentiles of these samples, given in ms."""
        return cls(
            p50=Spread.of([percentile(samples, 50) for samples in repetitions]),
            p95=Spread.of([percentile(samples, 95) for samples in repetitions]),
            highest=Spread.of([max(samples) for samples in repetitions]),
        )


def percentile(samples: Sequence[float], percent: float) -> float:
    """Return the smallest sample that at least this share of the samples does not exceed (nearest rank)."""
    rank = -(-len(samples) * percent // 100)
    return sorted(samples)[max(int(rank), 1) - 1]


class EventRate(Frozen):
    """Events of one kind: how fast they were written down durably, and how fast the index followed."""

    kind: str
    events: int
    recorded_per_s: Spread
    committed_per_s: Spread


class Events(Frozen):
    """The events of one composition."""

    composition: str
    rates: tuple[EventRate, ...]


class Ingestion(Frozen):
    """New servers through the whole path of the embedded composition, eight at a time, and memory on the way."""

    servers: int
    tools: int
    tokens_per_tool: float
    seconds: Spread
    tools_per_s: Spread
    late_server_tools: int
    event_to_commit_ms: Latency


class StageShare(Frozen):
    """One stage of looking at servers one after the other. `items` are texts or tools, over all repetitions."""

    name: str
    ms_per_server: Spread
    share_percent: Spread
    items: int


class Looks(Frozen):
    """Servers looked at one after the other, the time split into stages."""

    servers: int
    tools: int
    repetitions: int
    ms_per_server: Spread
    stages: tuple[StageShare, ...]


class Found(Frozen):
    """`find_tool` on a catalogue of one size; `cached`: the query was asked before."""

    tools: int
    servers: int
    embed: Latency
    embed_cached: Latency
    search: Latency
    sum: Latency
    without_embed: Latency
    mcp: Latency
    mcp_cached: Latency


class Counted(Frozen):
    """Counting the tokens of this many definitions in one go."""

    tools: int
    encoding: str
    tokens: int
    ms: Spread


class Memory(Frozen):
    """Resident memory of the embedded process, in MiB."""

    moment: str
    mib: Spread


class Results(Frozen):
    """A whole run."""

    made_at: str
    seconds: float
    plan: Plan
    machine: Machine
    conditions: tuple[Conditions, ...]
    events: tuple[Events, ...]
    ingestion: Ingestion
    new: Looks
    unchanged: Looks
    found: tuple[Found, ...]
    counted: tuple[Counted, ...]
    memory: tuple[Memory, ...]
