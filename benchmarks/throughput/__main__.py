"""`python -m benchmarks.throughput`: measure, store the JSON, and render the Markdown next to it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from benchmarks.throughput.counting import measure_counting
from benchmarks.throughput.events import measure_events
from benchmarks.throughput.finding import measure_finding
from benchmarks.throughput.ingestion import measure_ingestion
from benchmarks.throughput.looks import measure_looks
from benchmarks.throughput.machine import Conditions, Watch, this_machine
from benchmarks.throughput.plan import FULL, QUICK, Plan
from benchmarks.throughput.report import render
from benchmarks.throughput.results import Results
from shared.observability.logging import configure_logging

RESULTS = Path(__file__).parents[1] / "results"

T = TypeVar("T")


class Run:
    """A run in progress: measures one subject after the other and notes what else the machine was doing."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.conditions: list[Conditions] = []

    def measure(self, subject: str, measure: Callable[[Plan], T]) -> T:
        """Return what was measured of this subject."""
        watch = Watch(subject)
        found = measure(self._plan)
        self.conditions.append(watch.conditions())
        print(f"{subject}: measured in {self.conditions[-1].seconds:.0f} s", flush=True)
        return found


def run(plan: Plan) -> Results:
    """Measure everything the plan asks for."""
    started = time.perf_counter()
    subjects = Run(plan)
    counted = subjects.measure("counting", measure_counting)
    found = subjects.measure("find_tool", measure_finding)
    new, unchanged = subjects.measure("looks", measure_looks)
    ingestion, memory = subjects.measure("ingestion", measure_ingestion)
    events = subjects.measure("events", measure_events)
    return Results(
        made_at=f"{datetime.now(UTC):%Y-%m-%d}",
        seconds=round(time.perf_counter() - started, 1),
        plan=plan,
        machine=this_machine(),
        conditions=tuple(subjects.conditions),
        events=events,
        ingestion=ingestion,
        new=new,
        unchanged=unchanged,
        found=found,
        counted=counted,
        memory=memory,
    )


def write(results: Results, directory: Path) -> None:
    """Keep the results as JSON, and the report rendered from that JSON."""
    kept = directory / "throughput.json"
    kept.write_text(results.model_dump_json(indent=2) + "\n", encoding="utf-8")
    report(directory)


def report(directory: Path) -> None:
    """Render the report from the JSON in this directory."""
    kept = Results.model_validate_json((directory / "throughput.json").read_text(encoding="utf-8"))
    rendered = directory / "throughput.md"
    rendered.write_text(render(kept), encoding="utf-8")
    print(f"Wrote {rendered}")


def main() -> None:
    """Run the benchmark, or only render what is kept."""
    arguments = _arguments()
    configure_logging("WARNING")
    if not arguments.render:
        write(run(QUICK if arguments.quick else FULL), arguments.output)
    else:
        report(arguments.output)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything still runs")
    parser.add_argument("--render", action="store_true", help="measure nothing, render the kept JSON again")
    parser.add_argument("--output", type=Path, default=RESULTS, help="directory of throughput.json and throughput.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
