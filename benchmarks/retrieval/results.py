"""Results of the benchmark, stored as JSON and rendered as Markdown."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from benchmarks.throughput.machine import Machine


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True)


class Score(_Kept):
    """Recall at a cut-off: the share of the capabilities a query needs that are found, in percent, mean and 95 %."""

    recall_at_5: float
    recall_at_8: float
    recall_at_10: float
    interval_at_5: tuple[float, float]
    interval_at_10: tuple[float, float]


class SetResult(_Kept):
    """A set of queries: Toolscale through MCP, and its rivals by name."""

    name: str
    queries: int
    tools: int
    toolscale: Score
    rivals: dict[str, Score]


class CorpusResult(_Kept):
    """Costs of loading a corpus."""

    name: str
    tools: int
    servers: int
    ingested_s: float
    disk_mib: float


class AbstentionPoint(_Kept):
    """At this threshold, in percent, means over the sets: how often it is seen that nothing fits, and what it costs.

    `elsewhere` is of queries asked in other sets' corpora, `lost_recall` in points of recall@5 on queries that have an
    answer.
    """

    no_match_threshold: float
    tools_removed: float
    servers_removed: float
    elsewhere: float
    lost_recall: float


class AbstentionSet(_Kept):
    """One set at every threshold."""

    name: str
    points: tuple[AbstentionPoint, ...]


class Abstention(_Kept):
    """Quality of the answer "no tool fits": means over the sets, and per set. It can be measured separately."""

    made_at: str
    means: tuple[AbstentionPoint, ...]
    sets: tuple[AbstentionSet, ...]


class Latency(_Kept):
    """Milliseconds of one query at a catalogue's size; `search` includes fetching the tools."""

    tools: int
    queries: int
    embed_p50: float
    search_p50: float
    search_p95: float


class Results(_Kept):
    """Everything a run found."""

    made_at: str
    seconds: float
    machine: Machine
    sets: tuple[SetResult, ...]
    corpora: tuple[CorpusResult, ...]
    abstention: Abstention
    latency: tuple[Latency, ...]
