"""Results as stored in JSON. Tests compare the report and docs/scaling.md with these values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from benchmarks.throughput.machine import Conditions, Machine
from benchmarks.throughput.results import percentile


class Frozen(BaseModel):
    """A value that is written once."""

    model_config = ConfigDict(frozen=True)


class Answers(Frozen):
    """How long so many answers took, in ms; percentiles by nearest rank."""

    count: int
    p50: float
    p95: float
    p99: float
    highest: float

    @classmethod
    def of(cls, samples_ms: Sequence[float]) -> Answers:
        """Return the percentiles of these samples, rounded to a hundredth."""
        p50, p95, p99, highest = (round(percentile(samples_ms, percent), 2) for percent in (50, 95, 99, 100))
        return cls(count=len(samples_ms), p50=p50, p95=p95, p99=p99, highest=highest)


class Part(Frozen):
    """How a part was measured; `plan` is full or quick, `index` which engine held the tools."""

    made_at: str
    plan: str
    index: str
    conditions: Conditions


class StormRun(Frozen):
    """The storm sent in one way: when the last event was sent, when the index followed, and what it cost."""

    way: str
    sent_s: float
    drained_s: float
    listings: int
    tools_written: int
    cpu_s: float
    answers: Answers


class Storm(Frozen):
    """Many events for few unchanged servers; each of the `distinct` events is sent `events / distinct` times."""

    servers: int
    tools: int
    events: int
    distinct: int
    runs: tuple[StormRun, ...]


class Replicas(Frozen):
    """The first ingestion of many replicas of one server; `counted` and `embedded` are texts."""

    servers: int
    tools: int
    counted: int
    embedded: int
    seconds: float
    cpu_s: float
    peak_mib: float


class Resync(Frozen):
    """Every server due at once and found unchanged by one worker, with so many commands to Redis.

    `listing` counts the listings by this worker; only the first has a version probe.

    `redis_grown_mib` is what Redis holds more than when it was empty.
    """

    protocol: str
    listing: Literal["first", "second"] = "first"
    servers: int
    tools: int
    seconds: float
    listings: int
    tools_written: int
    cpu_s: float
    peak_mib: float
    redis_commands: int
    redis_grown_mib: float


class Crowd(Frozen):
    """Replicas, and then resyncs of all of them."""

    replicas: Replicas
    resyncs: tuple[Resync, ...]


class Ingestion(Frozen):
    """Servers of the corpus announced at once; `setting` is the worker setting, `tools` were written."""

    setting: str
    servers: int
    tools: int
    seconds: float
    tools_per_s: float
    cpu_s: float
    peak_mib: float
    disk_mib: float


class StageTime(Frozen):
    """A stage of looks, one after the other in one thread: seconds in all, and what passed through it."""

    name: str
    seconds: float
    items: int


class Stages(Frozen):
    """A sample of the corpus, looked at by one thread. `rest` is the queue, and all that has no stopwatch."""

    servers: int
    tools: int
    seconds: float
    stages: tuple[StageTime, ...]


class Haystack(Frozen):
    """The first ingestion of a whole corpus, and what helps."""

    corpus_servers: int
    corpus_tools: int
    ingestions: tuple[Ingestion, ...]
    stages: Stages


class Metrics(Frozen):
    """Token metrics within find_tool at one size, while events arrive; `looks` were made, each found a change."""

    tools: int
    servers: int
    events: int
    looks: int
    seconds: float
    resident_mib: float
    token_metrics: Answers
    find_tool: Answers


class MetricsBySize(Frozen):
    """Token metrics at all sizes."""

    event_rate: float
    question_rate: float
    sizes: tuple[Metrics, ...]


class Findable(Frozen):
    """Servers that come up one after the other, from the event until find_tool returns their last tool."""

    load: str
    tools: int
    answers: Answers


class Findables(Frozen):
    """The same idle and under load."""

    runs: tuple[Findable, ...]


class Results(Frozen):
    """The parts measured so far, each with its own circumstances; a run of some parts keeps the others."""

    machine: Machine
    parts: dict[str, Part]
    storm: Storm | None = None
    crowd: Crowd | None = None
    haystack: Haystack | None = None
    metrics: MetricsBySize | None = None
    findable: Findables | None = None
