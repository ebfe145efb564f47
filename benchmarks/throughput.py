"""New tools a second, and the memory of an embedded Toolscale.

**Question.** How many tools per second does `toolscale serve` ingest, how long does one new server take from its event
to the commit, and how much memory does the process use?

**Repeat.** `make bench BENCH=throughput` takes about three minutes on two cores.
With `QDRANT_URL` the index is on that server.

**Method.** Each repetition is the embedded composition, with its query service, in a new process on an empty
directory: all servers are announced at once, then single servers one after the other.
Memory is the resident memory of that process after each step, and its peak by the kernel.
Percentiles are by nearest rank within a repetition; tables show their median over the repetitions, and the lowest and
highest.

**Caveats.**

- Servers, worker, query service and benchmark share the machine's cores.
- Definitions are generated from a seed, with the sizes of public ones. They are more alike than real ones: token counts
  have fewer distinct values.
- The servers are scripted and on loopback. Those of the kept runs were of the MCP SDK, which took some of the
  processors.
- The last size is filled with vectors of random directions, and not embedded.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import psutil

from benchmarks.catalogue import fill
from benchmarks.compositions import Producer, index_settings
from benchmarks.fleet_servers import Fleet, RunningFleet, running_fleet
from benchmarks.harness import (
    MIB,
    Figures,
    Watches,
    cell,
    command,
    head,
    in_fresh_process,
    kept_name,
    latency,
    peak_mib,
    run_benchmark,
    spread,
    table,
)
from query.catalogue import catalogue_of
from query.listener import open_listener
from query.mcp import build_server
from query.service import HttpServer
from query.tools.registry import builtin_tools
from shared.catalog import Scope
from shared.text.tokens import IDLE_S
from toolscale.embedded.composition import Embedded, run_embedded


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of a run: `servers` at once, then `late_servers` one by one, then `held_tools` in the index."""

    name: str
    repetitions: int
    servers: int
    tools_per_server: int
    late_servers: int
    held_tools: int
    seed: int = 20260704


FULL = Plan("full", repetitions=3, servers=20, tools_per_server=50, late_servers=8, held_tools=10_000)
QUICK = Plan("quick", repetitions=1, servers=2, tools_per_server=5, late_servers=1, held_tools=50)


def measure(plan: Plan, watches: Watches) -> Figures:
    """Return what the repetitions took."""
    tools = plan.servers * plan.tools_per_server
    fleet = Fleet("generated", plan.servers + plan.late_servers, plan.tools_per_server, plan.seed)

    def ingest() -> list[Figures]:
        return [in_fresh_process(_ingest_all, servers, plan) for _ in range(plan.repetitions)]

    with running_fleet(fleet) as servers:
        lives = watches.measure("ingestion", ingest)
    return {
        "plan": asdict(plan),
        "tools_per_s": spread([tools / life["ingestion_s"] for life in lives]),
        "ingestion_s": spread([life["ingestion_s"] for life in lives]),
        "tokens_per_tool": round(lives[0]["tokens"] / tools, 1),
        "event_to_commit_ms": latency([life["late_ms"] for life in lives]),
        "memory_mib": {moment: spread([life["mib"][moment] for life in lives]) for moment in lives[0]["mib"]},
    }


def _ingest_all(directory: Path, servers: RunningFleet, plan: Plan) -> Figures:
    """Return the seconds and the resident memory of one repetition."""
    process, tools = psutil.Process(), plan.servers * plan.tools_per_server
    mib: dict[str, float] = {}

    def note(moment: str) -> None:
        mib[moment] = round(process.memory_info().rss / MIB, 1)

    with run_embedded(index_settings(directory)) as embedded:
        producer, index = Producer(embedded.emit, embedded.deps.intents), embedded.deps.index
        _ = _query_service(embedded)
        note("started, nothing embedded yet")
        embedded.deps.embedder.query("ready")
        note("model loaded")
        events = [server.up for server in servers.servers()]
        started = time.perf_counter()
        producer.ingest(events[: plan.servers])
        ingestion_s = time.perf_counter() - started
        tokens = index.token_sum(Scope(), "cl100k_base").tokens
        note(f"{tools:,} tools ingested")
        time.sleep(IDLE_S + 1)
        note(f"{tools:,} tools, idle for {IDLE_S:.0f} s")
        late_ms: list[float] = []
        for event in events[plan.servers :]:
            started = time.perf_counter()
            producer.ingest([event])
            late_ms.append((time.perf_counter() - started) * 1000)
        fill(index, range(len(events), plan.held_tools // plan.tools_per_server), plan.tools_per_server, plan.seed)
        note(f"{plan.held_tools:,} tools held")
    mib["peak"] = peak_mib(process)
    return {"ingestion_s": ingestion_s, "tokens": tokens, "late_ms": late_ms, "mib": mib}


def _query_service(embedded: Embedded) -> HttpServer:
    """Return the query service of this process, as `toolscale serve` has it."""
    catalogue = catalogue_of(embedded.deps.index, embedded.deps.embedder, embedded.settings)
    return HttpServer(
        build_server(builtin_tools(catalogue)), open_listener(embedded.settings), index=embedded.deps.index
    )


def render(figures: Figures) -> Iterator[str]:
    """Yield the report."""
    plan = figures["plan"]
    yield from head(__doc__, figures)
    yield f"Repetitions: {plan['repetitions']}; medians, with the lowest and highest in brackets."
    yield "## Ingestion"
    yield (
        f"{plan['servers']} new servers announced at once, each of {plan['tools_per_server']} tools of "
        f"{figures['tokens_per_tool']:g} tokens in the mean,\n"
        "the model loaded before; then single servers, one after the other."
    )
    rows = {
        "tools a second": figures["tools_per_s"],
        "seconds for all": figures["ingestion_s"],
        "one server, event to commit, p50 in ms": figures["event_to_commit_ms"]["p50"],
        "one server, event to commit, p95 in ms": figures["event_to_commit_ms"]["p95"],
    }
    yield table(("measure", "value"), [(name, cell(value)) for name, value in rows.items()])
    yield "## Memory of the embedded process"
    yield "Worker, query service, model, vocabularies and the index, unless it is on a Qdrant server, in one process."
    yield table(("moment", "MiB"), [(moment, cell(mib)) for moment, mib in figures["memory_mib"].items()])


def main() -> None:
    """Run the benchmark, or only render what is kept."""
    arguments = command("throughput", __doc__).parse_args()
    run_benchmark(kept_name("throughput"), arguments, partial(measure, QUICK if arguments.quick else FULL), render)


if __name__ == "__main__":
    main()
