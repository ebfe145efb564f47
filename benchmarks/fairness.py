"""One caller beside another one at full load.

**Question.** How long does a caller wait for `find_tool` while another caller loads the service?

**Repeat.** `make bench BENCH=fairness` takes about a minute on two cores.

**Method.** A real `python -m query` has tokens for two callers, the bundled model and 1,000 generated tools with random
vectors. The load is 16 requests in flight, each of 20 steps of 4,000 characters in clauses, no two alike.
Rounds alone and rounds beside the load alternate.

**Caveats.** Both callers run on the cores of the service. Compare the two only within a run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from pathlib import Path

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from benchmarks.catalogue import bundled_index, fill
from benchmarks.compositions import Service, embedded_settings, find_ms, query_service
from benchmarks.generated import queries
from benchmarks.harness import Figures, Watches, command, figures_table, head, latency, run_benchmark
from tests.support.http_callers import entry, token_file

SEED = 7
IN_FLIGHT, STEPS, STEP_CHARACTERS = 16, 20, 4_000
# Clauses; each step begins with another number, so that no text is embedded before.
TEXT = ". ".join(queries(STEP_CHARACTERS // 20, SEED))
# Seconds for the load to begin; the service is idle when it uses less than a tenth of a core.
SETTLE_S, IDLE_PERCENT = 2.0, 10.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of a run; `searches` are those of one round."""

    name: str
    servers: int
    tools_per_server: int
    rounds: int
    searches: int


FULL = Plan("full", servers=20, tools_per_server=50, rounds=5, searches=40)
QUICK = Plan("quick", servers=2, tools_per_server=5, rounds=1, searches=2)


def measure(plan: Plan, watches: Watches) -> Figures:
    """Return the waits of one caller, by turns alone and beside the load of another caller."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with bundled_index(embedded_settings(directory)) as index:
            fill(index, range(plan.servers), plan.tools_per_server, SEED)
        tokens = token_file(directory / "tokens.toml", light=entry("light"), heavy=entry("heavy"))
        with query_service(directory, QDRANT_URL="", TOOLSCALE_TOKENS_FILE=str(tokens)) as service:
            quiet, loaded = watches.measure("fairness", lambda: anyio.run(_rounds, service, plan))
    return {"plan": asdict(plan), "quiet": latency(quiet), "loaded": latency(loaded)}


async def _rounds(service: Service, plan: Plan) -> tuple[list[list[float]], list[list[float]]]:
    fresh, numbers = iter(queries(2 * plan.rounds * plan.searches + 1, SEED)), count()
    quiet, loaded = list[list[float]](), list[list[float]]()
    async with _http("light") as http, Client(streamable_http_client(service.url, http_client=http)) as light:
        await find_ms(light, next(fresh))
        for _ in range(plan.rounds):
            quiet.append([await find_ms(light, next(fresh)) for _ in range(plan.searches)])
            async with _http("heavy") as heavy, anyio.create_task_group() as load:
                for _ in range(IN_FLIGHT):
                    load.start_soon(_load, heavy, service.url, numbers)
                await anyio.sleep(SETTLE_S)
                loaded.append([await find_ms(light, next(fresh)) for _ in range(plan.searches)])
                load.cancel_scope.cancel()
            while await anyio.to_thread.run_sync(service.process.cpu_percent, 1.0) > IDLE_PERCENT:
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
        response = await http.post(url, json=request, headers={"accept": "application/json, text/event-stream"})
        response.raise_for_status()


def render(figures: Figures) -> Iterator[str]:
    """Yield the report."""
    plan, quiet, loaded = figures["plan"], figures["quiet"], figures["loaded"]
    p50, p95 = (loaded[name]["median"] / quiet[name]["median"] for name in ("p50", "p95"))
    yield from head(__doc__, figures)
    yield (
        f"`find_tool` of one caller, one search after the other, in ms: medians of {plan['rounds']} rounds of "
        f"{plan['searches']},\nwith the lowest and highest round in brackets."
    )
    rows = [{"searches": "alone", **quiet}, {"searches": "beside the load", **loaded}]
    yield figures_table(rows, "searches", "p50", "p95", "highest")
    yield (
        f"Beside the load, the p50 is {p50:.1f} times that alone, and the p95 {p95:.1f} times; "
        "the target for the p95 is at most 3."
    )


def main() -> None:
    """Run the benchmark, or only render what is kept."""
    arguments = command("fairness", __doc__).parse_args()
    run_benchmark("fairness", arguments, partial(measure, QUICK if arguments.quick else FULL), render)


if __name__ == "__main__":
    main()
