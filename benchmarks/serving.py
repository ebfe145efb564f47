"""Client latency: calls of other servers' tools, and many clients at once.

**Question.** How much does Toolscale add to a call of another server's tool?
How long do one, sixteen and fifty clients wait that search at once?

**Repeat.** `make bench BENCH=serving` takes about two minutes on two cores.
With `QDRANT_URL` the index is on that server, and many clients also search two processes of the service, each half of
them.

**Method.** Clients of the MCP SDK, all in one process, call a real `python -m query` over streamable HTTP.
It has default settings, and an index of generated tools with random vectors.

- `call_tool`: a scripted server over streamable HTTP has a tool that takes a known time and returns its duration.
  Clients call it directly and through Toolscale, alternating, with open connections.
- Many clients: each connects and lists the tools, then searches without a pause, which is more than agents do. Every
  text is new, so its embedding is part of the time. Then all send the same queries again, and as many pings, on the
  newest revision that has them. Processor time is the operating system's figure for the service, and for the clients.

**Caveats.**

- Services, clients, called servers and a Qdrant server share the machine's cores; without the clients the service would
  answer more. The time of the clients themselves is part of each time.
- For clients without pauses, the wait is their number divided by the answers per second. Use the processor time per
  answer, or its ratio to that of a ping, to estimate another machine.
- No random vector is similar to a query, so the terms decide every time whether a tool fits: slightly more work than
  with real vectors.
- All traffic is on loopback. The server of the kept runs was of the MCP SDK, which takes longer than a scripted one.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import anyio
import psutil
from mcp import Client

from benchmarks.catalogue import bundled_index, fill
from benchmarks.compositions import Service, find_ms, index_settings, query_service
from benchmarks.fleet_servers import WORK_MS, Era, Fleet, RunningFleet, running_fleet
from benchmarks.generated import definitions, queries
from benchmarks.harness import (
    Figures,
    Watches,
    command,
    figures_table,
    head,
    in_fresh_process,
    kept_name,
    latency,
    number,
    percentile,
    processor_s,
    run_benchmark,
    server_process,
    spread,
    wait_until_indexed,
)
from tests.support.qdrant_server import qdrant_url

# A revision, and where a scripted server speaks it; a client of the SDK calls the second one legacy.
PROTOCOLS: dict[str, Era] = {"2026-07-28": "modern", "2025-11-25": "handshake"}
MODES = {"2026-07-28": "2026-07-28", "2025-11-25": "legacy"}
PINGING = "legacy"  # the newest mode with pings
NEW, AGAIN, PINGS = "never asked before", "asked before", "pings"
LONGEST_WAIT_MS = 1_000


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of a run; in each repetition `calls` of a tool, and `questions` of all `clients` together."""

    name: str
    repetitions: int
    catalogue_sizes: tuple[int, ...]
    tools_per_server: int
    calls: int
    clients: tuple[int, ...]
    questions: int
    seed: int = 20260704


FULL = Plan("full", 3, (1_000, 10_000), tools_per_server=50, calls=40, clients=(1, 16, 50), questions=400)
QUICK = Plan("quick", 1, (50,), tools_per_server=10, calls=2, clients=(1, 3), questions=6)


def measure(plan: Plan, watches: Watches) -> Figures:
    """Return the latencies at each size of the catalogue."""

    def at_size(tools: int) -> Figures:
        return in_fresh_process(_at_size, tools, plan)

    served = [watches.measure(f"{tools:,} tools", partial(at_size, tools)) for tools in plan.catalogue_sizes]
    return {"plan": asdict(plan), "served": served}


def _at_size(directory: Path, tools: int, plan: Plan) -> Figures:
    """Fill an index with so many tools, and call services on it; where Qdrant is a server, there are two."""
    servers = tools // plan.tools_per_server
    with bundled_index(index_settings(directory)) as index:
        fill(index, range(servers), plan.tools_per_server, plan.seed)
    wait_until_indexed()
    config = directory / "mcp.json"
    with running_fleet(Fleet("generated", 1, plan.tools_per_server, plan.seed)) as fleet, ExitStack() as running:
        (server,) = fleet.servers()
        config.write_text(json.dumps({"mcpServers": {server.server_id: {"url": server.url}}}), encoding="utf-8")
        services = [
            running.enter_context(query_service(directory, f"query-{number}", TOOLSCALE_MCP_CONFIG=str(config)))
            for number in range(2 if qdrant_url() else 1)
        ]
        return {"tools": tools, "servers": servers, **anyio.run(_measured, services, fleet, plan)}


async def _measured(services: Sequence[Service], fleet: RunningFleet, plan: Plan) -> Figures:
    fresh = iter(queries(len(services) * len(plan.clients) * plan.repetitions * plan.questions, plan.seed))
    called = [await _called(services[0], fleet, protocol, plan) for protocol in PROTOCOLS]
    crowds = [
        crowd
        for processes in range(1, len(services) + 1)
        for clients in plan.clients
        for crowd in await _crowd(services[:processes], clients, plan, fresh)
    ]
    return {"called": called, "crowds": crowds}


# Calls of another server's tool


async def _called(service: Service, fleet: RunningFleet, protocol: str, plan: Plan) -> Figures:
    """Return the latency of calls beyond the duration that the tool reports.

    `added` is how much longer a median call through Toolscale takes than one at the server.
    """
    mode, (server,) = MODES[protocol], fleet.servers(PROTOCOLS[protocol])
    offered = definitions(server.server_id, plan.tools_per_server, plan.seed)
    tool = next(str(tool["name"]) for tool in offered if not tool["inputSchema"]["required"])
    call: dict[str, Any] = {"tool_name": f"{server.server_id}:{tool}", "parameters": {}}
    direct, through = list[list[float]](), list[list[float]]()
    for _ in range(plan.repetitions):
        async with Client(service.url, mode=mode) as ours, Client(server.url, mode=mode) as theirs:
            pairs = [
                (await _beyond_own_ms(theirs, tool, {}), await _beyond_own_ms(ours, "call_tool", call))
                for _ in range(plan.calls + 1)
            ]
        direct.append([at_server for at_server, _ in pairs[1:]])  # the first calls warm up
        through.append([at_ours for _, at_ours in pairs[1:]])
    added = [percentile(ours, 50) - percentile(theirs, 50) for ours, theirs in zip(through, direct, strict=True)]
    return {"protocol": protocol, "direct": latency(direct), "through": latency(through), "added_ms": spread(added)}


async def _beyond_own_ms(client: Client, tool: str, arguments: dict[str, Any]) -> float:
    started = time.perf_counter()
    result = await client.call_tool(tool, arguments)
    waited_ms = (time.perf_counter() - started) * 1000
    if result.is_error:
        raise RuntimeError(f"{tool} answered {arguments} with {result.content}")
    return waited_ms - float(result.structured_content["took_ms"])


# Many clients at once


async def _crowd(services: Sequence[Service], count: int, plan: Plan, fresh: Iterator[str]) -> list[Figures]:
    """Return the latency of new queries, of the same queries again, and of pings, for this number of clients."""
    rounds: dict[str, list[Figures]] = {NEW: [], AGAIN: [], PINGS: []}
    for _ in range(plan.repetitions):
        questions = [list(islice(fresh, plan.questions // count)) for _ in range(count)]
        async with _clients(services, count) as clients:
            rounds[NEW].append(await _round(services, clients, questions, find_ms))
            rounds[AGAIN].append(await _round(services, clients, questions, find_ms))
        async with _clients(services, count, PINGING) as clients:
            rounds[PINGS].append(await _round(services, clients, questions, _ping_ms))
    return [
        {
            "queries": kind,
            "processes": len(services),
            "clients": count,
            "answers": len(measured[0]["waited_ms"]),
            "answers_per_s": spread([len(each["waited_ms"]) / each["seconds"] for each in measured]),
            "latency": latency([each["waited_ms"] for each in measured]),
            "processor": {
                f"{whose}_ms": spread([each[f"{whose}_s"] * 1000 / len(each["waited_ms"]) for each in measured])
                for whose in ("service", "index", "clients")
            },
        }
        for kind, measured in rounds.items()
    ]


@asynccontextmanager
async def _clients(services: Sequence[Service], count: int, mode: str = "auto") -> AsyncGenerator[list[Client]]:
    """Yield clients that have connected and listed the tools, as an agent's has before it asks."""
    async with AsyncExitStack() as connected:
        urls = islice(cycle(service.url for service in services), count)
        clients = [await connected.enter_async_context(Client(url, mode=mode)) for url in urls]
        for client in clients:
            await client.list_tools()
        yield clients


async def _round(
    services: Sequence[Service],
    clients: Sequence[Client],
    questions: Sequence[Sequence[str]],
    ask_ms: Callable[[Client, str], Awaitable[float]],
) -> Figures:
    """Return the waits of all clients, and the processor seconds of all of it; Qdrant Edge is within the service."""
    waited_ms: list[float] = []
    url = qdrant_url()
    index: list[psutil.Process] = [server_process(url)] if url else []

    async def ask_all(client: Client, its_questions: Sequence[str]) -> None:
        waited_ms.extend([await ask_ms(client, question) for question in its_questions])

    def spent() -> Figures:
        services_s = sum(processor_s(service.process) for service in services)
        return {"service_s": services_s, "index_s": sum(map(processor_s, index)), "clients_s": time.process_time()}

    before, started = spent(), time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for client, its_questions in zip(clients, questions, strict=True):
            tasks.start_soon(ask_all, client, its_questions)
    seconds, after = time.perf_counter() - started, spent()
    return {"waited_ms": waited_ms, "seconds": seconds, **{name: after[name] - before[name] for name in before}}


async def _ping_ms(client: Client, _: str) -> float:
    started = time.perf_counter()
    await client.send_ping()  # pyright: ignore[reportDeprecated]
    return (time.perf_counter() - started) * 1000


# The report


def render(figures: Figures) -> Iterator[str]:
    """Yield the report."""
    yield from head(__doc__, figures)
    yield f"Repetitions: {figures['plan']['repetitions']}; medians, with the lowest and highest in brackets; in ms."
    for served in figures["served"]:
        yield f"## At {served['tools']:,} tools of {served['servers']} servers"
        yield (
            f"Calls of a tool that takes {WORK_MS:g} ms, beyond its own time. "
            "`direct`: at the server; `through`: through Toolscale; `added`: the difference of the medians."
        )
        through = ("through.p50", "through.p95", "through.highest")
        yield figures_table(served["called"], "protocol", "direct.p50", *through, "added_ms")
        yield from _crowds(served["crowds"])


def _crowds(crowds: Sequence[Figures]) -> Iterator[str]:
    longest = max(crowd["latency"]["highest"]["highest"] for crowd in crowds)
    yield (
        f"`find_tool` for many clients at once, about {crowds[0]['answers']:,} answers a repetition. "
        "Processor time is of one core for each answer, which bounds the rate; `index` is a Qdrant server.\n"
        f"The longest wait of all was {number(longest)} ms; the target is at most {LONGEST_WAIT_MS:,}."
    )
    # the processor time of answers in that of pings depends less on the machine
    ping_ms = {
        (crowd["clients"], crowd["processes"]): crowd["processor"]["service_ms"]["median"]
        for crowd in crowds
        if crowd["queries"] == PINGS
    }
    rows = list[Figures]()
    for crowd in crowds:
        each_ms = ping_ms[crowd["clients"], crowd["processes"]]  # 0 where they were few
        in_pings = crowd["processor"]["service_ms"]["median"] / each_ms if each_ms else ""
        rows.append({**crowd, "processor": {**crowd["processor"], "in_pings": in_pings}})
    waits = ("latency.p50", "latency.p95", "latency.highest", "answers_per_s")
    processor = ("processor.service_ms", "processor.in_pings", "processor.index_ms", "processor.clients_ms")
    yield figures_table(rows, "clients", "processes", "queries", *waits, *processor)


def main() -> None:
    """Run the benchmark, or only render what is kept."""
    arguments = command("serving", __doc__).parse_args()
    run_benchmark(kept_name("serving"), arguments, partial(measure, QUICK if arguments.quick else FULL), render)


if __name__ == "__main__":
    main()
