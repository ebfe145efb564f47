"""Many clients that ask `find_tool` at once, each for the next thing as soon as it has its answer."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import islice

import anyio
from mcp import Client

from benchmarks.serving.plan import Plan
from benchmarks.serving.results import Crowd
from benchmarks.serving.service import Service
from benchmarks.serving.single import answer
from benchmarks.throughput.results import Latency, Spread


@dataclass(frozen=True, slots=True)
class Round:
    """The answers to all clients: what each waited, how long it took in all, and who took the processor for it."""

    waited_ms: list[float]
    seconds: float
    service_s: float
    clients_s: float


def questions_needed(plan: Plan) -> int:
    """Return the number of new queries that `measure_crowd` needs."""
    return plan.clients * plan.questions * plan.repetitions


async def measure_crowd(service: Service, plan: Plan, fresh: Iterator[str]) -> tuple[Crowd, Crowd]:
    """Return the latency of new queries, and of the same queries again."""
    first: list[Round] = []
    again: list[Round] = []
    for _ in range(plan.repetitions):
        async with _clients(service.url, plan.clients) as clients:
            questions = [list(islice(fresh, plan.questions)) for _ in clients]
            first.append(await _round(service, clients, questions))
            again.append(await _round(service, clients, questions))
    return _crowd("never asked before", plan, first), _crowd("asked before", plan, again)


@asynccontextmanager
async def _clients(url: str, count: int) -> AsyncGenerator[list[Client]]:
    """Yield clients that have connected and listed the tools, as an agent's has before it asks."""
    async with AsyncExitStack() as connected:
        clients = [await connected.enter_async_context(Client(url)) for _ in range(count)]
        for client in clients:
            await client.list_tools()
        yield clients


async def _round(service: Service, clients: Sequence[Client], questions: Sequence[Sequence[str]]) -> Round:
    waited_ms: list[float] = []
    service_s, clients_s, started = service.processor_s(), time.process_time(), time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for client, its_questions in zip(clients, questions, strict=True):
            tasks.start_soon(_ask, client, its_questions, waited_ms)
    seconds = time.perf_counter() - started
    return Round(waited_ms, seconds, service.processor_s() - service_s, time.process_time() - clients_s)


async def _ask(client: Client, questions: Sequence[str], waited_ms: list[float]) -> None:
    for question in questions:
        started = time.perf_counter()
        await answer(client, "find_tool", {"tool_description": question})
        waited_ms.append((time.perf_counter() - started) * 1000)


def _crowd(queries: str, plan: Plan, rounds: Sequence[Round]) -> Crowd:
    answers = plan.clients * plan.questions
    return Crowd(
        queries=queries,
        clients=plan.clients,
        answers=answers,
        answers_per_s=Spread.of([answers / repetition.seconds for repetition in rounds]),
        latency=Latency.of([repetition.waited_ms for repetition in rounds]),
        service_ms=Spread.of([repetition.service_s * 1000 / answers for repetition in rounds]),
        clients_ms=Spread.of([repetition.clients_s * 1000 / answers for repetition in rounds]),
    )
