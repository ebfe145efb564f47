"""How long a new server takes from its event until find_tool returns its tools, idle and under load."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
from mcp import Client

from benchmarks.fleet.asking import asking, find_tool
from benchmarks.fleet.changes import changes
from benchmarks.fleet.compositions import Everything, Site, everything, site
from benchmarks.fleet.plan import Plan
from benchmarks.fleet.results import Answers, Findable, Findables
from benchmarks.fleet.servers import Fleet, RunningFleet, running_fleet
from benchmarks.throughput.corpus import definitions
from benchmarks.throughput.embedded import PATIENCE_S, up
from benchmarks.throughput.fleet import FleetServer
from benchmarks.throughput.isolation import in_fresh_process

ASK_EVERY_S = 0.02


def measure_findable(plan: Plan) -> Findables:
    """Return the times without and with a steady load of changes and questions."""
    # half of the new servers come up idle, half under load; the others change under load
    new = Fleet(kind="generated", servers=2 * plan.late_servers, tools=plan.tools_per_server, seed=plan.seed)
    old = Fleet(kind="changing", servers=plan.load_servers, tools=plan.tools_per_server, seed=plan.seed + 1)
    with running_fleet(new) as new_servers, running_fleet(old) as old_servers:
        return in_fresh_process(_findables, new_servers, old_servers, plan)


def _findables(directory: Path, new: RunningFleet, old: RunningFleet, plan: Plan) -> Findables:
    loaded = f"{plan.event_rate:g} events of changed servers and {plan.question_rate:g} questions a second"
    # the ids of both fleets are alike
    others = [FleetServer(f"old-{server.server_id}", server.url) for server in old.servers()]
    with site(directory) as at, everything(at.composition) as running:
        ids = [server.server_id for server in others]
        at.ingest([up(server) for server in others])
        idle = _bring_up(at, running, new.servers()[: plan.late_servers], plan)
        with changes(at.producer, ids, plan.event_rate), asking(running.mcp_url, plan.question_rate, plan.seed):
            busy = _bring_up(at, running, new.servers()[plan.late_servers :], plan)
    runs = [
        Findable(load=load, tools=plan.tools_per_server, answers=Answers.of(samples))
        for load, samples in (("none", idle), (loaded, busy))
    ]
    return Findables(runs=tuple(runs))


def _bring_up(at: Site, running: Everything, servers: list[FleetServer], plan: Plan) -> list[float]:
    """Announce one server after the other; return the ms from each event until its last tool is found."""

    async def bring_up_all() -> list[float]:
        async with Client(running.mcp_url) as client:
            return [await _bring_up_one(client, at, server, plan) for server in servers]

    return anyio.run(bring_up_all)


async def _bring_up_one(client: Client, at: Site, server: FleetServer, plan: Plan) -> float:
    last = str(definitions(server.server_id, plan.tools_per_server, plan.seed)[-1]["name"])
    question = {"tool_description": last, "servers": [server.server_id], "limit": 50}
    started = time.perf_counter()
    await anyio.to_thread.run_sync(at.producer.emit, up(server))
    while time.perf_counter() - started < PATIENCE_S:
        _, found = await find_tool(client, **question)
        if f"{server.server_id}:{last}" in found:
            return round((time.perf_counter() - started) * 1000, 1)
        await anyio.sleep(ASK_EVERY_S)
    raise TimeoutError(f"{server.server_id}: {last} was not found within {PATIENCE_S:g} s")
