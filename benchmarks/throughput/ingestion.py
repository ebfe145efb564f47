"""A life of the embedded composition: start, many new servers at once, a few late ones, growth; time and memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.throughput.catalogue import fill
from benchmarks.throughput.embedded import Producer, index_settings, up, wait_until_committed
from benchmarks.throughput.fleet import FleetServer, fleet
from benchmarks.throughput.isolation import in_fresh_process
from benchmarks.throughput.memory import Footprint
from benchmarks.throughput.plan import Plan
from benchmarks.throughput.results import Ingestion, Latency, Memory, Spread
from shared.catalog import Scope
from shared.text.tokens import IDLE_S
from toolscale.embedded.composition import Embedded, run_embedded


@dataclass(frozen=True, slots=True)
class Life:
    """Results of one repetition; `mib` is resident memory by moment, in order."""

    ingestion_s: float
    late_ms: list[float]
    tokens: int
    mib: dict[str, float]


def measure_ingestion(plan: Plan) -> tuple[Ingestion, tuple[Memory, ...]]:
    """Return what the lives took."""
    with fleet(plan.servers + plan.late_servers, plan.tools_per_server, plan.seed) as servers:
        lives = [in_fresh_process(_live, servers, plan) for _ in range(plan.repetitions)]
    moments = lives[0].mib
    memory = tuple(Memory(moment=moment, mib=Spread.of([life.mib[moment] for life in lives])) for moment in moments)
    return _ingestion(lives, plan), memory


def _ingestion(lives: Sequence[Life], plan: Plan) -> Ingestion:
    tools = plan.servers * plan.tools_per_server
    return Ingestion(
        servers=plan.servers,
        tools=tools,
        tokens_per_tool=round(lives[0].tokens / tools, 1),
        seconds=Spread.of([life.ingestion_s for life in lives]),
        tools_per_s=Spread.of([tools / life.ingestion_s for life in lives]),
        late_server_tools=plan.tools_per_server,
        event_to_commit_ms=Latency.of([life.late_ms for life in lives]),
    )


def _live(directory: Path, servers: Sequence[FleetServer], plan: Plan) -> Life:
    footprint = Footprint()
    with run_embedded(index_settings(directory)) as embedded:
        _ = _start_query_side(embedded)
        footprint.note("started, nothing embedded yet")
        embedded.deps.embedder.query("ready")
        footprint.note("model loaded")
        ingestion_s, tokens = _ingest(embedded, servers[: plan.servers])
        footprint.note(f"{plan.servers * plan.tools_per_server:,} tools ingested")
        time.sleep(IDLE_S + 1)
        footprint.note(f"{plan.servers * plan.tools_per_server:,} tools, idle for {IDLE_S:.0f} s")
        late_ms = [_ingest(embedded, [server])[0] * 1000 for server in servers[plan.servers :]]
        _grow(embedded, len(servers), plan)
        footprint.note(f"{plan.catalogue_sizes[-1]:,} tools held")
    footprint.note_peak()
    return Life(ingestion_s, late_ms, tokens, footprint.mib)


def _start_query_side(embedded: Embedded) -> object:
    """Return the query service of this process, as `toolscale serve` has it."""
    from query.catalogue import catalogue_of  # noqa: PLC0415
    from query.listener import open_listener  # noqa: PLC0415
    from query.mcp import build_server  # noqa: PLC0415
    from query.service import HttpServer  # noqa: PLC0415
    from query.tools.registry import builtin_tools  # noqa: PLC0415

    index, embedder = embedded.deps.index, embedded.deps.embedder
    server = build_server(builtin_tools(catalogue_of(index, embedder, embedded.settings)))
    return HttpServer(server, open_listener(embedded.settings), index=index)


def _ingest(embedded: Embedded, servers: Sequence[FleetServer]) -> tuple[float, int]:
    """Announce these servers; return the seconds until all are committed, and the tokens in the index then."""
    producer = Producer(embedded.emit, embedded.deps.intents)
    started = time.perf_counter()
    for server in servers:
        producer.emit(up(server))
    wait_until_committed(producer.intents, [server.server_id for server in servers])
    seconds = time.perf_counter() - started
    return seconds, embedded.deps.index.token_sum(Scope(), "cl100k_base").tokens


def _grow(embedded: Embedded, servers: int, plan: Plan) -> None:
    """Fill the index up to the largest catalogue."""
    numbers = range(servers, plan.catalogue_sizes[-1] // plan.tools_per_server)
    fill(embedded.deps.index, numbers, plan.tools_per_server, plan.seed, embedded.deps.embedder.dimension)
