"""`python -m benchmarks.fairness`: measure a caller beside one at full load, store the JSON, render the Markdown.

The load is 16 requests in flight, each of 20 steps of 4,000 characters in clauses, no two alike.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import anyio
import httpx2
import psutil
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from benchmarks.command import command, run_benchmark
from benchmarks.throughput.catalogue import fill
from benchmarks.throughput.corpus import queries
from benchmarks.throughput.embedded import embedded_settings
from benchmarks.throughput.finding import call_ms, url_of
from benchmarks.throughput.machine import Conditions, Machine, Watch, this_machine
from benchmarks.throughput.report import spread, table
from benchmarks.throughput.results import Frozen, Latency
from shared.text import BUNDLED_MODEL
from shared.text.embedding import BUNDLED_DIMENSION
from tests.support.http_callers import entry, token_file
from tests.support.indexes import open_index
from tests.support.processes import Composition

SERVERS, TOOLS_PER_SERVER, SEED = 20, 50, 7
IN_FLIGHT, STEPS, STEP_CHARACTERS = 16, 20, 4_000
# Clauses; each step begins with another number, so that no text is embedded before.
TEXT = ". ".join(queries(STEP_CHARACTERS // 20, SEED))
ROUNDS, SEARCHES = 5, 40
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

    @property
    def p50_ratio(self) -> float:
        """Return the same of the p50."""
        return self.loaded.p50.median / self.quiet.p50.median


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
    fresh, numbers = iter(queries(2 * ROUNDS * SEARCHES + 1, SEED)), count()
    quiet, loaded = list[list[float]](), list[list[float]]()
    async with _http("light") as http, Client(streamable_http_client(url, http_client=http)) as light:
        await call_ms(light, next(fresh))
        for _ in range(ROUNDS):
            quiet.append([await call_ms(light, next(fresh)) for _ in range(SEARCHES)])
            async with _http("heavy") as heavy, anyio.create_task_group() as load:
                for _ in range(IN_FLIGHT):
                    load.start_soon(_load, heavy, url, numbers)
                await anyio.sleep(SETTLE_S)
                loaded.append([await call_ms(light, next(fresh)) for _ in range(SEARCHES)])
                load.cancel_scope.cancel()
            while await anyio.to_thread.run_sync(service.cpu_percent, 1.0) > IDLE_PERCENT:
                pass
    return quiet, loaded


def _http(token: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=300)


async def _load(http: httpx2.AsyncClient, url: str, numbers: Iterator[int]) -> None:
    """Request one heavy search after the other; an MCP client would use the processor to validate the responses."""
    while True:
        steps = [f"{next(numbers)} {TEXT}"[:STEP_CHARACTERS] for _ in range(STEPS)]
        arguments = {"tool_description": steps, "limit": 50, "detail": "full"}
        params = {"name": "find_tool", "arguments": arguments}
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        (
            await http.post(url, json=request, headers={"accept": "application/json, text/event-stream"})
        ).raise_for_status()


def render(results: Results) -> str:
    """Return the report; every number in it comes from `results`."""
    latencies = ("alone", results.quiet), ("beside the load", results.loaded)
    rows = [(name, spread(each.p50), spread(each.p95), spread(each.highest)) for name, each in latencies]
    machine, others = results.machine, results.conditions.others_percent
    lines = (
        "# One caller beside another one at full load",
        "",
        f"A run of `python -m benchmarks.fairness` on {results.made_at}. Rendered from `fairness.json`.",
        f"{machine.processor}, {machine.cores} cores. Other programs took {others:.0f} % of the processors.",
        "",
        f"`find_tool` of one caller, one search after the other, in ms: medians of {ROUNDS} rounds of {SEARCHES},",
        "with the lowest and highest round in brackets. Rounds alone and beside the load alternate.",
        f"The load: {IN_FLIGHT} requests in flight of another caller, each of {STEPS} steps",
        f"of {STEP_CHARACTERS:,} characters. Both callers run on the cores of the service.",
        "",
        *table(("searches", "p50", "p95", "highest"), rows),
        "",
        f"Beside the load, the p50 is {results.p50_ratio:.1f} times that alone,",
        f"and the p95 {results.p95_ratio:.1f} times;",
        "the target for the p95 is at most 3.",
    )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, unless only the stored JSON is rendered again."""
    run_benchmark("fairness", command("fairness", has_quick=False).parse_args(), measure, Results, render)


if __name__ == "__main__":
    main()
