"""`find_tool` at several catalogue sizes: its parts in process, and whole calls over MCP to a query service."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import anyio
from mcp import Client

from benchmarks.throughput.catalogue import fill
from benchmarks.throughput.corpus import queries
from benchmarks.throughput.embedded import index_settings
from benchmarks.throughput.isolation import in_fresh_process
from benchmarks.throughput.plan import Plan
from benchmarks.throughput.results import Found, Latency
from query.catalogue import catalogue_of
from query.find import Timings, find_tool
from query.search.request import FindRequest
from shared.catalog import Scope
from shared.index.tools import ToolIndex
from shared.settings import Settings
from shared.text import BUNDLED_MODEL
from shared.text.embedding import BUNDLED_DIMENSION, FastEmbedder
from tests.support.indexes import open_index
from tests.support.processes import Composition, Running

# Each query twice: the first embeds it, the second finds its vector remembered.
Twice = tuple[list[Timings], list[Timings]]
TwiceMs = tuple[list[float], list[float]]


def measure_finding(plan: Plan) -> tuple[Found, ...]:
    """Return the latencies at each catalogue size."""
    return tuple(in_fresh_process(_at_size, size, plan) for size in plan.catalogue_sizes)


def _at_size(directory: Path, size: int, plan: Plan) -> Found:
    servers = size // plan.tools_per_server
    asked = queries(plan.queries * plan.repetitions, plan.seed)
    batches = [asked[start :: plan.repetitions] for start in range(plan.repetitions)]
    settings = index_settings(directory)
    with closing(open_index(settings, BUNDLED_MODEL, BUNDLED_DIMENSION)) as index:
        fill(index, range(servers), plan.tools_per_server, plan.seed, BUNDLED_DIMENSION)
        parts = _parts(index, batches, settings)
    return _found(size, servers, parts, _over_mcp(directory, batches))


def _parts(index: ToolIndex, batches: Sequence[Sequence[str]], settings: Settings) -> list[Twice]:
    embedder = FastEmbedder(settings.embedding_model)
    embedder.query("ready")
    catalogue = catalogue_of(index, embedder, settings)

    def ask(batch: Sequence[str]) -> list[Timings]:
        return [find_tool(FindRequest(tool_description=query), Scope(), catalogue)[1] for query in batch]

    ask(["ready"])  # the ledger reads every record once
    return [(ask(batch), ask(batch)) for batch in batches]


def _over_mcp(directory: Path, batches: Sequence[Sequence[str]]) -> list[TwiceMs]:
    """Return the milliseconds of whole calls, as a client sees them, to `python -m query` on this directory."""
    on_free_port = {"TOOLSCALE_PORT": "0", "TOOLSCALE_HOST": "", "TOOLSCALE_LOG_LEVEL": ""}
    with Composition("", directory, on_free_port).run("query", "-m", "query") as service:
        service.wait_for("query_service_started")
        return anyio.run(_ask_all, url_of(service), batches)


def url_of(service: Running) -> str:
    lines = (json.loads(line) for line in service.output().splitlines())
    return next(str(line["url"]) for line in lines if line["event"] == "query_service_started")


async def _ask_all(url: str, batches: Sequence[Sequence[str]]) -> list[TwiceMs]:
    async with Client(url) as client:
        await call_ms(client, "ready")
        return [
            ([await call_ms(client, q) for q in batch], [await call_ms(client, q) for q in batch]) for batch in batches
        ]


async def call_ms(client: Client, query: str) -> float:
    started = time.perf_counter()
    result = await client.call_tool("find_tool", {"tool_description": query})
    elapsed_ms = (time.perf_counter() - started) * 1000
    if result.is_error or not result.structured_content:
        raise RuntimeError(f"find_tool answered {query!r} with {result.content}")
    return elapsed_ms


def _found(size: int, servers: int, parts: Sequence[Twice], mcp: Sequence[TwiceMs]) -> Found:
    cold, cached = [first for first, _ in parts], [second for _, second in parts]
    both = [[*first, *second] for first, second in parts]
    return Found(
        tools=size,
        servers=servers,
        embed=Latency.of([[timing.embed_ms for timing in run] for run in cold]),
        embed_cached=Latency.of([[timing.embed_ms for timing in run] for run in cached]),
        search=Latency.of([[timing.search_ms for timing in run] for run in both]),
        sum=Latency.of([[timing.sum_ms for timing in run] for run in both]),
        without_embed=Latency.of([[timing.search_ms + timing.sum_ms for timing in run] for run in both]),
        mcp=Latency.of([first for first, _ in mcp]),
        mcp_cached=Latency.of([second for _, second in mcp]),
    )
