"""The needs of larger fleets, computed from the kept results of `benchmarks.fleet`: the tables of docs/scaling.md."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.harness import Figures, filled, number, table
from shared.intents.times import SWEEP_INTERVAL_S
from shared.intents.transitions import EARLIEST_SHARE
from shared.settings import Settings
from shared.text.embedding import BUNDLED_DIMENSION
from workers.work import SWEEP_LIMIT

# Servers and tools of the fleets that the page shows.
SIZES = ((1_000, 20_000), (1_000, 100_000), (10_000, 1_000_000))
# A worker process is planned to be this busy, so that events find it with time to spare.
BUSY_SHARE = 0.5
DENSE_VECTORS, FLOAT_BYTES = 2, 2
REPLICAS = 2
# Resident, with all payload indexes and the graph: 80,000 tools on Qdrant 1.19.0, on 2026-11-28.
QDRANT_KIB = 9.29
# Limit for the time of a search on Edge, extrapolated linearly from the measured sizes; above it use a server.
EDGE_SEARCH_MS = 100.0
# A server is listed again after so many seconds, in the mean, with the default settings.
MEAN_INTERVAL_S = float(Settings.model_fields["resync_interval_s"].default) * (1 + EARLIEST_SHARE) / 2

GIB = 1 << 30
NOT_MEASURED = "Not measured yet."


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
        """Return the processor ms of a reconciliation of an unchanged server with so many tools."""
        return self.look_ms + self.look_tool_ms * tools


def costs(figures: Figures) -> Costs:
    """Return the unit costs; KeyError where a part has not been measured yet."""
    storm, resyncs, sizes = figures["storm"], figures["crowd"]["resyncs"], figures["metrics"]["sizes"]
    repeated = [resync for resync in resyncs if resync["listing"] == "second"] or resyncs
    narrow, wide = repeated[0], repeated[-1]
    look_ms = [1_000 * cost["processor_s"] / cost["servers"] for cost in (narrow, wide)]
    tools = [cost["tools"] / cost["servers"] for cost in (narrow, wide)]
    per_tool = max(0.0, (look_ms[1] - look_ms[0]) / (tools[1] - tools[0]))
    small, large = sizes[0], sizes[-1]
    more_tools = large["tools"] - small["tools"]
    whole = figures["haystack"]["ingestions"][0]
    return Costs(
        event_ms=1_000 * min(run["processor_s"] for run in storm["runs"]) / storm["events"],
        look_ms=look_ms[0] - per_tool * tools[0],
        look_tool_ms=per_tool,
        look_commands=narrow["redis_commands"] / narrow["servers"],
        intent_kib=narrow["redis_grown_mib"] * 1_024 / narrow["servers"],
        tool_ms=1_000 * whole["processor_s"] / whole["tools"],
        disk_kib=whole["disk_mib"] * 1_024 / whole["tools"],
        resident_kib=(large["resident_mib"] - small["resident_mib"]) * 1_024 / more_tools,
        edge_search_ms_per_thousand=1_000 * (large["find_tool"]["p50"] - small["find_tool"]["p50"]) / more_tools,
    )


def scaling_page(page: str, figures: Figures) -> str:
    """Return docs/scaling.md with its tables as the figures have them; NOT_MEASURED where a part is missing."""
    tables: dict[str, Callable[[Figures], str]] = {"costs": _costs, "needs": _needs, "breaks": _breaks}
    is_measured = {"storm", "crowd", "haystack", "metrics"} <= figures.keys()
    return filled(page, lambda name: tables[name](figures) if is_measured else NOT_MEASURED)


def _costs(figures: Figures) -> str:
    cost = costs(figures)
    rows = [
        (
            "a recorded event, mostly duplicates, with reconciliations and searches",
            cost.event_ms,
            "processor ms",
            "storm",
        ),
        ("a reconciliation of an unchanged server", cost.look_ms, "processor ms", "crowd"),
        ("and for each of its tools", cost.look_tool_ms, "processor ms", "crowd"),
        ("a reconciliation of an unchanged server", cost.look_commands, "Redis commands", "crowd"),
        ("an announced server", cost.intent_kib, "KiB in Redis", "crowd"),
        ("a new tool, listed, counted, embedded and written", cost.tool_ms, "processor ms", "haystack"),
        ("a tool", cost.disk_kib, "KiB on disk", "haystack"),
        ("a tool", cost.resident_kib, "KiB in memory, on Qdrant Edge", "metrics"),
        ("a tool", QDRANT_KIB, "KiB in memory of a Qdrant server, with payload indexes and graph", "measured once"),
        ("a thousand tools more in a search on Qdrant Edge", cost.edge_search_ms_per_thousand, "ms", "metrics"),
    ]
    shown = [(what, number(value), unit, part) for what, value, unit, part in rows]
    return table(("what", "costs", "unit", "measured by the part"), shown)


def _needs(figures: Figures) -> str:
    needs = [_need(servers, tools, costs(figures)) for servers, tools in SIZES]
    headings = ("", *(f"{servers:,} servers, {tools:,} tools" for servers, tools in SIZES))
    return table(headings, [(name, *(need[name] for need in needs)) for name in needs[0]])


def _need(servers: int, tools: int, cost: Costs) -> dict[str, str]:
    looks_per_s = servers / MEAN_INTERVAL_S
    look_cores = looks_per_s * cost.look_at(tools / servers) / 1_000
    vectors_gib = tools * DENSE_VECTORS * BUNDLED_DIMENSION * FLOAT_BYTES / GIB
    server_gib = tools * QDRANT_KIB * 1_024 / GIB
    return {
        "reconciliations a second, for a resync of every server": number(looks_per_s),
        "processors for that": number(look_cores),
        f"worker processes, each {BUSY_SHARE:.0%} busy": f"{max(1, math.ceil(look_cores / BUSY_SHARE))}",
        "first ingestion, or a model change, processor hours": number(tools * cost.tool_ms / 3_600_000),
        "Redis, MiB for intents": number(servers * cost.intent_kib / 1_024),
        "Redis, commands a second for reconciliations": number(looks_per_s * cost.look_commands),
        "dense vectors, GiB": number(vectors_gib),
        "Qdrant server, GiB in memory": number(server_gib),
        "index, GiB on disk": number(tools * cost.disk_kib * 1_024 / GIB),
        f"Qdrant servers with {REPLICAS} replicas, GiB in memory together": number(server_gib * REPLICAS),
        "one find_tool on Qdrant Edge, ms": number(tools * cost.edge_search_ms_per_thousand / 1_000),
    }


def _breaks(figures: Figures) -> str:
    cost, replicas = costs(figures), figures["crowd"]["replicas"]
    whole, large = figures["haystack"]["ingestions"][0], figures["metrics"]["sizes"][-1]
    tools_each, tools_per_s = replicas["tools"] / replicas["servers"], whole["tools_per_s"]
    rows = [
        (
            "Qdrant Edge: a search blocks its process",
            f"{1_000 * EDGE_SEARCH_MS / cost.edge_search_ms_per_thousand:,.0f} tools for {EDGE_SEARCH_MS:g} ms",
            "a Qdrant server (`QDRANT_URL`)",
        ),
        (
            "one worker process: one processor for reconciliations",
            f"{1_000 * MEAN_INTERVAL_S / cost.look_at(tools_each):,.0f} unchanged servers of {tools_each:g} tools",
            "more worker processes, or a longer `TOOLSCALE_RESYNC_INTERVAL_S`",
        ),
        (
            "one worker process: new tools",
            f"{tools_per_s:,.0f} tools a second, {1_000_000 / tools_per_s / 3_600:.1f} h for a million",
            "more worker processes on a Qdrant server",
        ),
        (
            "the sweep: servers per sweep",
            f"{SWEEP_LIMIT / SWEEP_INTERVAL_S * MEAN_INTERVAL_S:,.0f} servers within the resync interval",
            "a longer `TOOLSCALE_RESYNC_INTERVAL_S`",
        ),
        (
            "the ledger: a sum over all servers after a change, beside searches of Qdrant Edge",
            f"{large['token_metrics']['p95']:,.1f} ms with {large['servers']:,} servers (p95), and linear",
            "a Qdrant server (`QDRANT_URL`), whose searches do not block the process",
        ),
    ]
    return table(("what", "reaches", "then"), rows)
