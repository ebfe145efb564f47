"""Each tool asked by one client at a time, over both revisions of the protocol."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from mcp import Client
from mcp.types import CallToolResult

from benchmarks.serving.plan import Plan
from benchmarks.serving.results import Asked, Called
from benchmarks.serving.scripted import WORK
from benchmarks.serving.service import OVER_HTTP, OVER_STDIO, Service
from benchmarks.throughput.corpus import definitions, server_id
from benchmarks.throughput.results import Latency, Spread, percentile

# A revision, and the client's option for it.
PROTOCOLS = {"2026-07-28": "2026-07-28", "2025-11-25": "legacy"}
TRANSPORTS = {"streamable HTTP": OVER_HTTP, "stdio": OVER_STDIO}

Ask = Callable[[Client, Client], Awaitable[object]]
"""Asks something of the service, by a client without a toolset or by one that has it."""


async def answer(client: Client, tool: str, arguments: dict[str, Any]) -> CallToolResult:
    """Return the tool's answer.

    Raises:
        RuntimeError: it is an error.
    """
    result = await client.call_tool(tool, arguments)
    if result.is_error:
        raise RuntimeError(f"{tool} answered {arguments} with {result.content}")
    return result


def questions_needed(plan: Plan) -> int:
    """Return the number of new queries that `measure_asking` needs."""
    return 2 * (plan.calls + 1) * len(PROTOCOLS) * plan.repetitions


async def measure_asking(service: Service, plan: Plan, fresh: Iterator[str]) -> tuple[Asked, ...]:
    """Return the duration of each built-in tool; every search uses a new query."""
    asks = _asks(fresh, _names(plan))
    found: dict[tuple[str, str], list[list[float]]] = {}
    for _ in range(plan.repetitions):
        for protocol, mode in PROTOCOLS.items():
            async with Client(service.url, mode=mode) as plain, Client(service.toolset_url, mode=mode) as chosen:
                for what, ask in asks.items():
                    await ask(plain, chosen)
                    ms = [await _ms(ask(plain, chosen)) for _ in range(plan.calls)]
                    found.setdefault((what, protocol), []).append(ms)
    return tuple(Asked(what=what, protocol=protocol, latency=Latency.of(ms)) for (what, protocol), ms in found.items())


async def measure_calling(service: Service, plan: Plan) -> tuple[Called, ...]:
    """Return how long calls of another server's tool take, by transport and revision."""
    found: list[Called] = []
    for transport, name in TRANSPORTS.items():
        for protocol, mode in PROTOCOLS.items():
            repeated = [await _calls(service, name, mode, plan) for _ in range(plan.repetitions)]
            found.append(_called(transport, protocol, repeated))
    return tuple(found)


def _asks(fresh: Iterator[str], names: Iterator[str]) -> dict[str, Ask]:
    def find(detail: str) -> Ask:
        return lambda plain, _: answer(plain, "find_tool", {"tool_description": next(fresh), "detail": detail})

    return {
        "find_tool, summaries": find("summary"),
        "find_tool, definitions": find("detailed"),
        "describe_tool": lambda plain, _: answer(plain, "describe_tool", {"names": next(names)}),
        "list_available_tools": lambda plain, _: answer(plain, "list_available_tools", {}),
        "get_active_toolset": lambda _, chosen: answer(chosen, "get_active_toolset", {}),
        "get_savings_report": lambda plain, _: answer(plain, "get_savings_report", {}),
        "tools/list": lambda plain, _: plain.list_tools(cache_mode="refresh"),
        "tools/list, with a toolset": lambda _, chosen: chosen.list_tools(cache_mode="refresh"),
    }


def _names(plan: Plan) -> Iterator[str]:
    server = server_id(1)
    return cycle(
        [f"{server}:{definition['name']}" for definition in definitions(server, plan.tools_per_server, plan.seed)]
    )


async def _ms(answered: Awaitable[object]) -> float:
    started = time.perf_counter()
    await answered
    return (time.perf_counter() - started) * 1000


@dataclass(frozen=True, slots=True)
class _Calls:
    """The calls of one repetition, in ms."""

    own: list[float] = field(default_factory=list[float])
    direct: list[float] = field(default_factory=list[float])
    through: list[float] = field(default_factory=list[float])


async def _calls(service: Service, name: str, mode: str, plan: Plan) -> _Calls:
    work = {"for_ms": plan.work_ms}
    call = {"tool_name": f"{name}:{WORK.name}", "parameters": work}
    calls = _Calls()
    async with Client(service.url, mode=mode) as ours, Client(service.scripted[name], mode=mode) as theirs:
        await _beyond_own_ms(theirs, WORK.name, work)
        await _beyond_own_ms(ours, "call_tool", call)
        for _ in range(plan.calls):
            own_ms, direct_ms = await _beyond_own_ms(theirs, WORK.name, work)
            other_own_ms, through_ms = await _beyond_own_ms(ours, "call_tool", call)
            calls.own.extend((own_ms, other_own_ms))
            calls.direct.append(direct_ms)
            calls.through.append(through_ms)
    return calls


async def _beyond_own_ms(client: Client, tool: str, arguments: dict[str, Any]) -> tuple[float, float]:
    """Return the milliseconds that the tool reports, and the additional latency of the client."""
    started = time.perf_counter()
    result = await answer(client, tool, arguments)
    waited_ms = (time.perf_counter() - started) * 1000
    own_ms = float(result.structured_content["took_ms"])
    return own_ms, waited_ms - own_ms


def _called(transport: str, protocol: str, repeated: list[_Calls]) -> Called:
    added = [percentile(calls.through, 50) - percentile(calls.direct, 50) for calls in repeated]
    return Called(
        transport=transport,
        protocol=protocol,
        own=Latency.of([calls.own for calls in repeated]),
        direct=Latency.of([calls.direct for calls in repeated]),
        through=Latency.of([calls.through for calls in repeated]),
        added_ms=Spread.of(added),
    )
