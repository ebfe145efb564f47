"""Many clients that ask `find_tool` at once, each for the next thing as soon as it has its answer.

Pings of as many clients show how much of an answer's time HTTP, the MCP SDK and the machine take.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import cycle, islice

import anyio
from mcp import Client

from benchmarks.qdrant import server_process
from benchmarks.serving.plan import Plan
from benchmarks.serving.results import PINGS, Crowd
from benchmarks.serving.service import Service
from benchmarks.serving.single import answer
from benchmarks.throughput.machine import processor_s
from benchmarks.throughput.results import Latency, Spread
from tests.support.qdrant_server import qdrant_url

Send = Callable[[Client, str], Awaitable[object]]
"""Sends a request of this text."""

# The newest revision with pings.
PINGING = "legacy"


@dataclass(frozen=True, slots=True)
class Round:
    """The answers to all clients: what each waited, how long it took in all, and who took the processor for it."""

    waited_ms: list[float]
    seconds: float
    services_s: float
    index_s: float
    clients_s: float


def questions_needed(plan: Plan, processes: int) -> int:
    """Return the number of new queries that `measure_crowds` needs."""
    return len(plan.clients) * plan.questions * plan.repetitions * processes


async def measure_crowds(services: Sequence[Service], plan: Plan, fresh: Iterator[str]) -> list[Crowd]:
    """Return the latency of new queries, of the same queries again, and of pings, for each number of clients."""
    return [crowd for clients in plan.clients for crowd in await _measure_crowd(services, clients, plan, fresh)]


async def _measure_crowd(
    services: Sequence[Service], count: int, plan: Plan, fresh: Iterator[str]
) -> tuple[Crowd, ...]:
    rounds: dict[str, list[Round]] = {"never asked before": [], "asked before": [], PINGS: []}
    for _ in range(plan.repetitions):
        questions = [list(islice(fresh, plan.questions // count)) for _ in range(count)]
        async with _clients(services, count) as clients:
            for kind in ("never asked before", "asked before"):
                rounds[kind].append(await _round(services, clients, questions, _find))
        async with _clients(services, count, PINGING) as clients:
            rounds[PINGS].append(await _round(services, clients, questions, _ping))
    return tuple(_crowd(kind, len(services), count, measured) for kind, measured in rounds.items())


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
    services: Sequence[Service], clients: Sequence[Client], questions: Sequence[Sequence[str]], send: Send
) -> Round:
    waited_ms: list[float] = []
    index_s = _index_s()
    services_s, clients_s, started = _services_s(services), time.process_time(), time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for client, its_questions in zip(clients, questions, strict=True):
            tasks.start_soon(_ask_all, client, its_questions, send, waited_ms)
    seconds, clients_s = time.perf_counter() - started, time.process_time() - clients_s
    return Round(waited_ms, seconds, _services_s(services) - services_s, _index_s() - index_s, clients_s)


def _services_s(services: Sequence[Service]) -> float:
    return sum(service.processor_s() for service in services)


def _index_s() -> float:
    """Return the processor time of the Qdrant server; Qdrant Edge is within the service."""
    url = qdrant_url()
    return processor_s(server_process(url)) if url else 0.0


async def _find(client: Client, question: str) -> None:
    await answer(client, "find_tool", {"tool_description": question})


async def _ping(client: Client, _: str) -> None:
    await client.send_ping()  # pyright: ignore[reportDeprecated]


async def _ask_all(client: Client, questions: Sequence[str], send: Send, waited_ms: list[float]) -> None:
    for question in questions:
        started = time.perf_counter()
        await send(client, question)
        waited_ms.append((time.perf_counter() - started) * 1000)


def _crowd(queries: str, processes: int, clients: int, rounds: Sequence[Round]) -> Crowd:
    def ms_each(seconds: Callable[[Round], float]) -> Spread:
        return Spread.of([seconds(each) * 1000 / len(each.waited_ms) for each in rounds])

    return Crowd(
        queries=queries,
        processes=processes,
        clients=clients,
        answers=len(rounds[0].waited_ms),
        answers_per_s=Spread.of([len(each.waited_ms) / each.seconds for each in rounds]),
        latency=Latency.of([each.waited_ms for each in rounds]),
        service_ms=ms_each(lambda each: each.services_s),
        index_ms=ms_each(lambda each: each.index_s),
        clients_ms=ms_each(lambda each: each.clients_s),
    )
