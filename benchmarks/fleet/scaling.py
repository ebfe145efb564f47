"""The needs of larger fleets, computed from the stored results: the tables of docs/scaling.md."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.fleet.results import Crowd, Haystack, MetricsBySize, Results, Storm
from benchmarks.throughput.report import number, table
from shared.intents.times import SWEEP_INTERVAL_S
from shared.intents.transitions import EARLIEST_SHARE
from shared.settings import Settings
from shared.text.embedding import BUNDLED_DIMENSION
from workers.work import SWEEP_LIMIT

# A worker process is planned to be this busy, so that events find it with time to spare.
BUSY_SHARE = 0.5
DENSE_VECTORS, FLOAT_BYTES = 2, 2
REPLICAS = 2
# Resident, with all payload indexes and the graph: 80,000 tools on Qdrant 1.19.0, on 2026-11-28.
QDRANT_KIB = 9.29
# Limit for the time of a search on Edge, extrapolated linearly from the measured sizes; above it use a server.
EDGE_SEARCH_MS = 100.0

GIB = 1 << 30
NOT_MEASURED = "Not measured yet."
_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Size:
    """An example fleet."""

    servers: int
    tools: int


SIZES = (Size(1_000, 20_000), Size(1_000, 100_000), Size(10_000, 1_000_000))


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs per unit: processor ms, commands and KiB of Redis, KiB of disk and memory.

    A reconciliation of an unchanged server costs `look_ms`, plus `look_tool_ms` for each of its tools.
    """

    event_ms: float
    look_ms: float
    look_tool_ms: float
    look_commands: float
    intent_kib: float
    tool_ms: float
    disk_kib: float
    resident_kib: float
    edge_search_ms_per_thousand: float

    def look_at(self, tools: float) -> float:
        """Return the processor ms of a look at an unchanged server with so many tools."""
        return self.look_ms + self.look_tool_ms * tools


def filled(document: str, results: Results) -> str:
    """Return the document with its tables as the results have them; they say so where a part was not measured yet."""
    tables: dict[str, Callable[[Results], Iterator[str]]] = {
        "costs": _costs,
        "needs": _needs,
        "breaks": _breaks,
    }
    is_measured = results.storm and results.crowd and results.haystack and results.metrics

    def rendered(found: re.Match[str]) -> str:
        lines = tables[found[2]](results) if is_measured else [NOT_MEASURED]
        return found[1] + "".join(f"{line}\n" for line in lines) + found[3]

    return _TABLE.sub(rendered, document)


def costs(results: Results) -> Costs:
    """Return the unit costs.

    Raises:
        ValueError: a part has not been measured yet.
    """
    storm, crowd, haystack, metrics = _parts(results)
    repeated = [resync for resync in crowd.resyncs if resync.listing == "second"] or crowd.resyncs
    narrow, wide = repeated[0], repeated[-1]
    look_ms = [1_000 * cost.cpu_s / cost.servers for cost in (narrow, wide)]
    tools = [cost.tools / cost.servers for cost in (narrow, wide)]
    per_tool = max(0.0, (look_ms[1] - look_ms[0]) / (tools[1] - tools[0]))
    small, large = metrics.sizes[0], metrics.sizes[-1]
    whole = haystack.ingestions[0]
    more_tools = large.tools - small.tools
    return Costs(
        event_ms=1_000 * min(run.cpu_s for run in storm.runs) / storm.events,
        look_ms=look_ms[0] - per_tool * tools[0],
        look_tool_ms=per_tool,
        look_commands=narrow.redis_commands / narrow.servers,
        intent_kib=narrow.redis_grown_mib * 1_024 / narrow.servers,
        tool_ms=1_000 * whole.cpu_s / whole.tools,
        disk_kib=whole.disk_mib * 1_024 / whole.tools,
        resident_kib=(large.resident_mib - small.resident_mib) * 1_024 / more_tools,
        edge_search_ms_per_thousand=1_000 * (large.find_tool.p50 - small.find_tool.p50) / more_tools,
    )


def _parts(results: Results) -> tuple[Storm, Crowd, Haystack, MetricsBySize]:
    storm, crowd, haystack, metrics = results.storm, results.crowd, results.haystack, results.metrics
    if storm and crowd and haystack and metrics:
        return storm, crowd, haystack, metrics
    raise ValueError("storm, crowd, haystack and metrics must have been measured")


def _costs(results: Results) -> Iterator[str]:
    cost = costs(results)
    rows = [
        ("a recorded event, mostly duplicates, with reconciliations and searches", "processor ms", "storm"),
        ("a reconciliation of an unchanged server", "processor ms", "crowd"),
        ("and for each of its tools", "processor ms", "crowd"),
        ("a reconciliation of an unchanged server", "Redis commands", "crowd"),
        ("an announced server", "KiB in Redis", "crowd"),
        ("a new tool, listed, counted, embedded and written", "processor ms", "haystack"),
        ("a tool", "KiB on disk", "haystack"),
        ("a tool", "KiB in memory, on Qdrant Edge", "metrics"),
        ("a tool", "KiB in memory of a Qdrant server, with payload indexes and graph", "measured once"),
        ("a thousand tools more in a search on Qdrant Edge", "ms", "metrics"),
    ]
    values = (
        cost.event_ms,
        cost.look_ms,
        cost.look_tool_ms,
        cost.look_commands,
        cost.intent_kib,
        cost.tool_ms,
        cost.disk_kib,
        cost.resident_kib,
        QDRANT_KIB,
        cost.edge_search_ms_per_thousand,
    )
    shown = [(what, number(value), unit, part) for (what, unit, part), value in zip(rows, values, strict=True)]
    yield from table(("what", "costs", "unit", "measured by the part"), shown)


def _needs(results: Results) -> Iterator[str]:
    needs = [_need(size, costs(results)) for size in SIZES]
    headings = ("", *(f"{size.servers:,} servers, {size.tools:,} tools" for size in SIZES))
    rows = [(name, *(need[name] for need in needs)) for name in needs[0]]
    yield from table(headings, rows)


def _need(size: Size, cost: Costs) -> dict[str, str]:
    looks_per_s = size.servers / _mean_interval_s()
    look_cores = looks_per_s * cost.look_at(size.tools / size.servers) / 1_000
    vectors_gib = size.tools * DENSE_VECTORS * BUNDLED_DIMENSION * FLOAT_BYTES / GIB
    server_gib = size.tools * QDRANT_KIB * 1_024 / GIB
    return {
        "reconciliations a second, for a resync of every server": number(looks_per_s),
        "processors for that": number(look_cores),
        f"worker processes, each {BUSY_SHARE:.0%} busy": f"{max(1, math.ceil(look_cores / BUSY_SHARE))}",
        "first ingestion, or a model change, processor hours": number(size.tools * cost.tool_ms / 3_600_000),
        "Redis, MiB for intents": number(size.servers * cost.intent_kib / 1_024),
        "Redis, commands a second for reconciliations": number(looks_per_s * cost.look_commands),
        "dense vectors, GiB": number(vectors_gib),
        "Qdrant server, GiB in memory": number(server_gib),
        "index, GiB on disk": number(size.tools * cost.disk_kib * 1_024 / GIB),
        f"Qdrant servers with {REPLICAS} replicas, GiB in memory together": number(server_gib * REPLICAS),
        "one find_tool on Qdrant Edge, ms": number(size.tools * cost.edge_search_ms_per_thousand / 1_000),
    }


def _breaks(results: Results) -> Iterator[str]:
    cost, (_, crowd, haystack, metrics) = costs(results), _parts(results)
    sweeps_per_s = SWEEP_LIMIT / SWEEP_INTERVAL_S
    tools_each = crowd.replicas.tools / crowd.replicas.servers
    seconds_per_server = cost.look_at(tools_each) / 1_000
    whole = haystack.ingestions[0]
    large = metrics.sizes[-1]
    rows = [
        (
            "Qdrant Edge: a search blocks its process",
            f"{1_000 * EDGE_SEARCH_MS / cost.edge_search_ms_per_thousand:,.0f} tools for {EDGE_SEARCH_MS:g} ms",
            "a Qdrant server (`QDRANT_URL`)",
        ),
        (
            "one worker process: one processor for reconciliations",
            f"{_mean_interval_s() / seconds_per_server:,.0f} unchanged servers of {tools_each:g} tools",
            "more worker processes, or a longer `TOOLSCALE_RESYNC_INTERVAL_S`",
        ),
        (
            "one worker process: new tools",
            f"{whole.tools_per_s:,.0f} tools a second, {1_000_000 / whole.tools_per_s / 3_600:.1f} h for a million",
            "more worker processes on a Qdrant server",
        ),
        (
            "the sweep: servers per sweep",
            f"{sweeps_per_s * _mean_interval_s():,.0f} servers within the resync interval",
            "a longer `TOOLSCALE_RESYNC_INTERVAL_S`",
        ),
        (
            "the ledger: a sum over all servers after a change, beside searches of Qdrant Edge",
            f"{large.token_metrics.p95:,.1f} ms with {large.servers:,} servers (p95), and linear",
            "a Qdrant server (`QDRANT_URL`), whose searches do not block the process",
        ),
    ]
    yield from table(("what", "reaches", "then"), rows)


def _mean_interval_s() -> float:
    """Return after how many seconds a server is listed again, in the mean, with the default settings."""
    return float(Settings.model_fields["resync_interval_s"].default) * (1 + EARLIEST_SHARE) / 2
