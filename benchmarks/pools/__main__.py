"""`python -m benchmarks.pools`: measure, store the JSON, and render the Markdown next to it."""

from __future__ import annotations

import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from benchmarks.command import command, run_benchmark
from benchmarks.pools.batching import measure_batching
from benchmarks.pools.crowd import measure_crowds
from benchmarks.pools.load import Found, Servers, measure
from benchmarks.pools.plan import FULL, QUICK, Plan, Pool
from benchmarks.pools.report import render
from benchmarks.pools.results import Arrangement, Batch, Crowd, Results, Waiting
from benchmarks.pools.waiting import measure_waiting
from benchmarks.throughput.fleet import FleetServer, fleet
from benchmarks.throughput.machine import Watches, this_machine
from benchmarks.throughput.results import percentile

LARGE_AT_ONCE = 2  # the default of the setting

T = TypeVar("T")


def run(plan: Plan) -> Results:
    """Measure everything the plan asks for."""
    watches = Watches()
    arrangements = tuple(watches.measure(pool.name, partial(_arrangement, pool, plan)) for pool in plan.pools)
    with silent_servers(plan.waiting) as silent:
        waiting = watches.measure("waiting", lambda: Waiting(**asdict(measure_waiting(silent))))
    crowds = watches.measure(
        "crowds", lambda: tuple(Crowd(**asdict(crowd)) for crowd in measure_crowds(plan.crowd, LARGE_AT_ONCE))
    )
    batches = watches.measure("batches", lambda: tuple(Batch(**asdict(batch)) for batch in measure_batching(plan)))
    return Results(
        made_at=f"{datetime.now(UTC):%Y-%m-%d}",
        plan=plan,
        machine=this_machine(),
        conditions=tuple(watches.conditions),
        arrangements=arrangements,
        waiting=waiting,
        crowds=crowds,
        batches=batches,
    )


@contextmanager
def silent_servers(count: int) -> Generator[list[FleetServer]]:
    """Return servers that accept connections and never answer."""
    with socket.create_server(("127.0.0.1", 0), backlog=4 * count) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        yield [FleetServer(f"silent-{number:04}", url) for number in range(count)]


def _arrangement(pool: Pool, plan: Plan) -> Arrangement:
    with (
        fleet(plan.unchanged, 5, plan.seed) as unchanged,
        fleet(plan.large, plan.tools_of_large, plan.seed + 1) as large,
        silent_servers(plan.silent) as silent,
    ):
        named = [FleetServer(f"large-{server.server_id}", server.url) for server in large]
        return _summary(pool, measure(pool, Servers(unchanged, named, silent), plan))


def _summary(pool: Pool, found: Found) -> Arrangement:
    return Arrangement(
        pool=pool,
        quick_looks=len(found.quick_s),
        quick_p50_s=round(percentile(found.quick_s, 50), 3),
        quick_p95_s=round(percentile(found.quick_s, 95), 3),
        quick_highest_s=round(max(found.quick_s), 3),
        large_s=round(found.large_s, 2),
        all_s=round(found.all_s, 2),
    )


def main() -> None:
    """Run the benchmark, or only render what is kept."""
    arguments = command("pools").parse_args()
    run_benchmark("pools", arguments, lambda: run(QUICK if arguments.quick else FULL), Results, render)


if __name__ == "__main__":
    main()
