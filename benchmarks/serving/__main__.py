"""`python -m benchmarks.serving`: measure, store the JSON, and render the Markdown next to it."""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.serving.measuring import measure_serving
from benchmarks.serving.plan import FULL, QUICK, Plan
from benchmarks.serving.report import render
from benchmarks.serving.results import Results, Served
from benchmarks.throughput.machine import Conditions, Watch, this_machine
from shared.observability.logging import configure_logging

RESULTS = Path(__file__).parents[1] / "results"


def run(plan: Plan) -> Results:
    """Measure everything the plan asks for."""
    started = time.perf_counter()
    measured = [_watched(size, plan) for size in plan.catalogue_sizes]
    return Results(
        made_at=f"{datetime.now(UTC):%Y-%m-%d}",
        seconds=round(time.perf_counter() - started, 1),
        plan=plan,
        machine=this_machine(),
        conditions=tuple(conditions for _, conditions in measured),
        served=tuple(served for served, _ in measured),
    )


def _watched(tools: int, plan: Plan) -> tuple[Served, Conditions]:
    watch = Watch(f"{tools:,} tools")
    served = measure_serving(tools, plan)
    conditions = watch.conditions()
    print(f"{conditions.subject}: measured in {conditions.seconds:.0f} s", flush=True)
    return served, conditions


def write(results: Results, directory: Path) -> None:
    """Keep the results as JSON, and the report rendered from that JSON."""
    (directory / "serving.json").write_text(results.model_dump_json(indent=2) + "\n", encoding="utf-8")
    report(directory)


def report(directory: Path) -> None:
    """Render the report from the JSON in this directory."""
    kept = Results.model_validate_json((directory / "serving.json").read_text(encoding="utf-8"))
    rendered = directory / "serving.md"
    rendered.write_text(render(kept), encoding="utf-8")
    print(f"Wrote {rendered}")


def main() -> None:
    """Run the benchmark, or only render what is kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything still runs")
    parser.add_argument("--render", action="store_true", help="measure nothing, render the kept JSON again")
    parser.add_argument("--output", type=Path, default=RESULTS, help="directory of serving.json and serving.md")
    arguments = parser.parse_args()
    configure_logging("WARNING")
    if not arguments.render:
        write(run(QUICK if arguments.quick else FULL), arguments.output)
    else:
        report(arguments.output)


if __name__ == "__main__":
    main()
