"""`python -m benchmarks.serving`: measure, store the JSON, and render the Markdown next to it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial

from benchmarks.command import command, kept_name, run_benchmark
from benchmarks.serving.measuring import measure_serving
from benchmarks.serving.plan import FULL, QUICK, Plan
from benchmarks.serving.report import render
from benchmarks.serving.results import Results
from benchmarks.throughput.machine import Watches, this_machine


def run(plan: Plan) -> Results:
    """Measure everything the plan asks for."""
    started = time.perf_counter()
    watches = Watches()
    served = [watches.measure(f"{size:,} tools", partial(measure_serving, size, plan)) for size in plan.catalogue_sizes]
    return Results(
        made_at=f"{datetime.now(UTC):%Y-%m-%d}",
        seconds=round(time.perf_counter() - started, 1),
        plan=plan,
        machine=this_machine(),
        conditions=tuple(watches.conditions),
        served=tuple(served),
    )


def main() -> None:
    """Run the benchmark, or only render what is kept."""
    arguments = command("serving").parse_args()
    run_benchmark(kept_name("serving"), arguments, lambda: run(QUICK if arguments.quick else FULL), Results, render)


if __name__ == "__main__":
    main()
