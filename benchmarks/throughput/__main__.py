"""`python -m benchmarks.throughput`: measure, store the JSON, and render the Markdown next to it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from benchmarks.command import command, kept_name, run_benchmark
from benchmarks.throughput.counting import measure_counting
from benchmarks.throughput.events import measure_events
from benchmarks.throughput.finding import measure_finding
from benchmarks.throughput.ingestion import measure_ingestion
from benchmarks.throughput.looks import measure_looks
from benchmarks.throughput.machine import Watches, this_machine
from benchmarks.throughput.plan import FULL, QUICK, Plan
from benchmarks.throughput.report import render
from benchmarks.throughput.results import Results

T = TypeVar("T")


def run(plan: Plan) -> Results:
    """Measure everything the plan asks for."""
    started = time.perf_counter()
    watches = Watches()
    counted = watches.measure("counting", partial(measure_counting, plan))
    found = watches.measure("find_tool", partial(measure_finding, plan))
    new, unchanged = watches.measure("looks", partial(measure_looks, plan))
    ingestion, memory = watches.measure("ingestion", partial(measure_ingestion, plan))
    events = watches.measure("events", partial(measure_events, plan))
    return Results(
        made_at=f"{datetime.now(UTC):%Y-%m-%d}",
        seconds=round(time.perf_counter() - started, 1),
        plan=plan,
        machine=this_machine(),
        conditions=tuple(watches.conditions),
        events=events,
        ingestion=ingestion,
        new=new,
        unchanged=unchanged,
        found=found,
        counted=counted,
        memory=memory,
    )


def main() -> None:
    """Run the benchmark, or only render what is kept."""
    arguments = command("throughput").parse_args()
    run_benchmark(kept_name("throughput"), arguments, lambda: run(QUICK if arguments.quick else FULL), Results, render)


if __name__ == "__main__":
    main()
