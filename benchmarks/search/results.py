"""What a run found, as it is kept in JSON. The report is rendered from these values and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from benchmarks.search.plan import Plan
from benchmarks.throughput.machine import Conditions, Machine
from benchmarks.throughput.results import percentile


class Frozen(BaseModel):
    """A value that is written once."""

    model_config = ConfigDict(frozen=True)


class Milliseconds(Frozen):
    """What single calls took."""

    p50: float
    p95: float

    @classmethod
    def of(cls, samples_ms: Sequence[float]) -> Milliseconds:
        """Return the percentiles of these samples."""
        return cls(p50=round(percentile(samples_ms, 50), 2), p95=round(percentile(samples_ms, 95), 2))


class Parts(Frozen):
    """Where the time of a search goes: each list alone, all lists in one round trip, ranking, and reading eight tools.

    `search` is all of these within `find_tool`, and `filtered` the same within one group.
    """

    name_list: Milliseconds
    text_list: Milliseconds
    terms_list: Milliseconds
    lists: Milliseconds
    ranking: Milliseconds
    tools: Milliseconds
    search: Milliseconds
    filtered: Milliseconds


class Recall(Frozen):
    """Shares of what an exact search found that was found with the graph, 0 to 1.

    The first ones are of the lists of both dense vectors, by score, since copies of a tool are equally near;
    `ranked_at_5` is of the tools that `find_tool` would answer.
    """

    lists_at_5: float
    lists_at_10: float
    lists_at_150: float
    ranked_at_5: float


class Graph(Frozen):
    """What building the graph took. Times in seconds; `stall_s` is the longest that this process stood still."""

    copy_s: float
    build_s: float
    switch_s: float
    stall_s: float
    builder_peak_mib: float


class Index(Frozen):
    """What an index takes: of time to be searched and to be opened, of disk and of this process's memory."""

    parts: Parts
    opened_s: float
    disk_mib: float
    resident_mib: float


class Size(Frozen):
    """All that was found with an index of one size, in which every vector is compared, and then by a graph.

    `selectivity` is the share of tools within the filter.
    """

    tools: int
    servers: int
    filled_s: float
    selectivity: float
    exact: Index
    graph: Index
    recall: Recall
    filtered_recall: Recall
    building: Graph


class Results(Frozen):
    """All of a run."""

    made_at: str
    plan: Plan
    machine: Machine
    conditions: tuple[Conditions, ...]
    corpus_tools: int
    queries: int
    sizes: tuple[Size, ...]
