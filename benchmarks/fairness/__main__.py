"""`python -m benchmarks.fairness`: measure a caller beside one at full load, store the JSON, render the Markdown.

The load is 16 requests in flight, each of 20 steps of 4,000 characters in clauses, no two alike.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import anyio
import httpx2
import psutil
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from benchmarks.throughput.catalogue import fill
from benchmarks.throughput.corpus import queries
from benchmarks.throughput.embedded import embedded_settings
from benchmarks.throughput.finding import call_ms, url_of
from benchmarks.throughput.machine import Conditions, Machine, Watch, this_machine
from benchmarks.throughput.report import table
from benchmarks.throughput.results import Frozen, Latency
from shared.text import BUNDLED_MODEL
from shared.text.embedding import BUNDLED_DIMENSION
from tests.support.http_callers import entry, token_file
from tests.support.indexes import open_index
from tests.support.processes import Composition

RESULTS = Path(__file__).parents[1] / "results"
SERVERS, TOOLS_PER_SERVER, SEED = 20, 50, 7
IN_FLIGHT, STEPS, STEP_CHARACTERS = 16, 20, 4_000
ROUNDS, SEARCHES = 3, 20
# Seconds for the load to begin; the service is idle when it uses less than a tenth of a core.
SETTLE_S, IDLE_PERCENT = 2.0, 10.0


class Results(Frozen):
    """A run: the searches of one caller, one after the other, by turns alone and beside the load of another caller."""

    made_at: str
    machine: Machine
    conditions: Conditions
    quiet: Latency
    loaded: Latency

    @property
    def p95_ratio(self) -> float:
        """Return the caller's p95 beside the load, in multiples of its p95 alone."""
        return self.loaded.p95.median / self.quiet.p95.median


def measure() -> Results:
    """Run `python -m query` on a filled index, and measure both callers over HTTP."""
    watch = Watch("fairness")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with closing(open_index(embedded_settings(directory), BUNDLED_MODEL, BUNDLED_DIMENSION)) as index:
            fill(index, range(SERVERS), TOOLS_PER_SERVER, SEED, BUNDLED_DIMENSION)
        tokens = token_file(directory / "tokens.toml", light=entry("light"), heavy=entry("heavy"))
        own = {"TOOLSCALE_PORT": "0", "TOOLSCALE_HOST": "", "QDRANT_URL": "", "TOOLSCALE_TOKENS_FILE": str(tokens)}
        with Composition("", directory, own).run("query", "-m", "query") as running:
            running.wait_for("query_service_started")
            quiet, loaded = anyio.run(_rounds, url_of(running), psutil.Process(running.process.pid))
    return Results(
        made_at=f"{datetime.now(UTC):%Y-%m-%d}",
        machine=this_machine(),
        conditions=watch.conditions(),
        quiet=Latency.of(quiet),
        loaded=Latency.of(loaded),
    )


async def _rounds(url: str, service: psutil.Process) -> tuple[list[list[float]], list[list[float]]]:
    fresh, quiet, loaded = iter(queries(2 * ROUNDS * SEARCHES + 1, SEED)), list[list[float]](), list[list[float]]()
    async with _client(url, "light") as light, _client(url, "heavy") as heavy:
        await call_ms(light, next(fresh))
        for _ in range(ROUNDS):
            quiet.append([await call_ms(light, next(fresh)) for _ in range(SEARCHES)])
            async with anyio.create_task_group() as load:
                for _ in range(IN_FLIGHT):
                    load.start_soon(_load, heavy)
                await anyio.sleep(SETTLE_S)
                loaded.append([await call_ms(light, next(fresh)) for _ in range(SEARCHES)])
                load.cancel_scope.cancel()
            from benchmarks.throughput.results import percentile as p; print([round(p(x,q)) for x in (quiet[-1],loaded[-1]) for q in (50,95,100)], flush=True)
            while await anyio.to_thread.run_sync(service.cpu_percent, 1.0) > IDLE_PERCENT:
                pass
    return quiet, loaded


@asynccontextmanager
async def _client(url: str, token: str) -> AsyncGenerator[Client]:
    http = httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=300, limits=httpx2.Limits())
    async with http, Client(streamable_http_client(url, http_client=http)) as client:
        yield client


_numbers = count()


async def _load(client: Client) -> None:
    while True:
        steps = [_long_step(next(_numbers)) for _ in range(STEPS)]
        await client.call_tool("find_tool", {"tool_description": steps, "limit": 50, "detail": "full"})


def _long_step(number: int) -> str:
    """Return a text of clauses that no other step has."""
    clauses = [f"{query}, number {number}." for query in queries(STEP_CHARACTERS // 20, number)]
    return " ".join(clauses)[:STEP_CHARACTERS]
if __name__ == "__main__":
    r = measure()
    print(r.quiet, r.loaded, r.p95_ratio, r.conditions)
