"""One arrangement under load: large first ingestions, servers that say nothing, and looks that should be quick."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.pools.plan import Plan, Pool
from benchmarks.throughput.embedded import embedded_settings, up
from benchmarks.throughput.fleet import FleetServer
from benchmarks.throughput.isolation import in_fresh_process
from shared.errors import ServerError
from shared.intents.intents import open_intents
from shared.service.logging import configure_logging
from workers.dependencies import Dependencies, open_dependencies
from workers.ingest import reconcile


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of a run: some unchanged, some large and new, some silent."""

    unchanged: Sequence[FleetServer]
    large: Sequence[FleetServer]
    silent: Sequence[FleetServer]


@dataclass(frozen=True, slots=True)
class Found:
    """Result of one arrangement: seconds of each quick reconciliation from request to end, and of all large ones."""

    quick_s: list[float]
    large_s: float
    all_s: float


def measure(pool: Pool, servers: Servers, plan: Plan) -> Found:
    """Return the result of the arrangement, measured in new processes."""
    if not pool.own_process:
        return in_fresh_process(_under_load, pool, servers, plan)
    # a separate queue for embedding needs a second worker: the first lists and hands over, the second lists again
    quick = Servers(servers.unchanged, (), servers.silent)
    large = Servers((), servers.large, ())
    with ThreadPoolExecutor(2) as both:
        large_only = both.submit(in_fresh_process, _under_load, pool.model_copy(update={"threads": 2}), large, plan)
        network = in_fresh_process(_under_load, pool, quick, plan, servers.large)
        cpu = large_only.result()
    return Found(network.quick_s, cpu.large_s, max(network.all_s, cpu.all_s))


def _under_load(
    directory: Path, pool: Pool, servers: Servers, plan: Plan, passed_on: Sequence[FleetServer] = ()
) -> Found:
    configure_logging("ERROR")  # silent servers are no news here
    with _opened(directory, pool, plan) as deps:
        _record(deps, servers.unchanged)
        for server in servers.unchanged:
            reconcile(server.server_id, deps)
        _record(deps, [*servers.large, *servers.silent, *passed_on])
        with ThreadPoolExecutor(pool.threads) as looks:
            started = time.perf_counter()
            large = [looks.submit(look, server, deps) for server in servers.large]
            others = [looks.submit(look, server, deps) for server in servers.silent]
            others += [looks.submit(_list_only, server, deps) for server in passed_on]
            busy = large or others
            quick = [future.result() for future in _ask(looks, servers.unchanged, deps, busy, plan.every_s)]
            large_s = max((future.result() for future in large), default=started) - started
            all_s = max((future.result() for future in others), default=started) - started
        _check(deps, servers.large, plan)
    return Found(quick, large_s, max(large_s, all_s))


@contextmanager
def _opened(directory: Path, pool: Pool, plan: Plan) -> Generator[Dependencies]:
    settings = embedded_settings(directory).model_copy(update={"listing_timeout_s": plan.silence_s})
    with closing(open_intents(settings)) as intents, closing(open_dependencies(settings, intents)) as deps:
        deps.embedder.query("ready")
        computing = threading.BoundedSemaphore(pool.embedding) if pool.embedding else nullcontext()
        yield replace(deps, computing=computing)


def _record(deps: Dependencies, servers: Sequence[FleetServer]) -> None:
    for server in servers:
        deps.intents.record(up(server), due_in_s=600)


def _ask(
    looks: ThreadPoolExecutor,
    servers: Sequence[FleetServer],
    deps: Dependencies,
    busy: Sequence[Future[float]],
    every_s: float,
) -> list[Future[float]]:
    """Ask for one look after the other at these servers, as long as others are busy and there are servers."""
    asked: list[Future[float]] = []
    for server in servers:
        if all(future.done() for future in busy):
            break
        deps.intents.record(up(server), due_in_s=600)
        asked.append(looks.submit(_timed_look, time.perf_counter(), server, deps))
        time.sleep(every_s)
    return asked


def _check(deps: Dependencies, large: Sequence[FleetServer], plan: Plan) -> None:
    held = [len(deps.index.tool_states(server.server_id)) for server in large]
    if held != [plan.tools_of_large] * len(large):
        raise RuntimeError(f"expected {plan.tools_of_large} tools of each large server, found {held}")


def _timed_look(asked_at: float, server: FleetServer, deps: Dependencies) -> float:
    return look(server, deps) - asked_at


def look(server: FleetServer, deps: Dependencies) -> float:
    """Look at a server and return when that ended."""
    with suppress(ServerError):  # it was silent
        reconcile(server.server_id, deps)
    return time.perf_counter()


def _list_only(server: FleetServer, deps: Dependencies) -> float:
    intent = deps.intents.intent(server.server_id)
    assert intent is not None
    deps.list_server(intent)
    return time.perf_counter()
