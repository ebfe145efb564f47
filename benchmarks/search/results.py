"""Results of a run as stored in JSON. The report is rendered from these values only."""

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
    """Durations of single calls."""

    p50: float
    p95: float

    @classmethod
    def of(cls, samples_ms: Sequence[float]) -> Milliseconds:
        """Return the percentiles of these samples."""
        return cls(p50=round(percentile(samples_ms, 50), 2), p95=round(percentile(samples_ms, 95), 2))


class Searches(Milliseconds):
    """Durations of searches, and the mean processor time of a whole call: of this process, and of the Qdrant server.

    None: it was not measured.
    """

    p99: float
    cpu_ms: float | None
    server_cpu_ms: float | None


class Parts(Frozen):
    """Parts of a search: each list separately, all lists in one round trip, ranking, and reading eight tools.

    `search` is all of these within `find_tool`, `filtered` the same within one group, and `originals` within the
    servers of the corpus: a search among replicas has the same filter.
    """

    name_list: Milliseconds
    text_list: Milliseconds
    terms_list: Milliseconds
    lists: Milliseconds
    ranking: Milliseconds
    tools: Milliseconds
    search: Searches
    filtered: Searches
    originals: Searches


class Index(Frozen):
    """The costs of an index: search times, time to open, disk and memory of this process, or of the Qdrant server."""

    parts: Parts
    opened_s: float
    disk_mib: float
    resident_mib: float


class Size(Frozen):
    """The measurements of an index of one size; `selectivity` is the share of tools within the filter.

    `indexed_s` is the time from the last write until a Qdrant server has built its graphs, and `server_cpu_s` is its
    processor time for all of the writes and the graphs; both are 0 for Edge.
    """

    tools: int
    servers: int
    filled_s: float
    indexed_s: float
    server_cpu_s: float
    selectivity: float
    index: Index


class Results(Frozen):
    """All of a run; `server` is the version of the Qdrant server, empty for Edge."""

    made_at: str
    server: str
    plan: Plan
    machine: Machine
    conditions: tuple[Conditions, ...]
    corpus_tools: int
    queries: int
    sizes: tuple[Size, ...]
