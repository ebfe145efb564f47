"""`python -m benchmarks.page`: measure, store the JSON, and render the Markdown next to it."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

from benchmarks.command import command, run_benchmark
from benchmarks.page.measuring import measure_pages
from benchmarks.page.report import render
from benchmarks.page.results import FULL, QUICK, Plan, Results
from benchmarks.throughput.machine import Watches, this_machine


def run(plan: Plan) -> Results:
    """Measure everything the plan asks for."""
    watches = Watches()
    sizes = [watches.measure(f"{servers:,} servers", partial(measure_pages, servers, plan)) for servers in plan.servers]
    return Results(
        made_at=f"{datetime.now(UTC):%Y-%m-%d}",
        plan=plan,
        machine=this_machine(),
        conditions=tuple(watches.conditions),
        sizes=tuple(sizes),
    )


def main() -> None:
    """Run the benchmark, or only render the stored results."""
    arguments = command("page").parse_args()
    run_benchmark("page", arguments, lambda: run(QUICK if arguments.quick else FULL), Results, render)


if __name__ == "__main__":
    main()
