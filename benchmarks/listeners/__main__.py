"""`python -m benchmarks.listeners`: measure, store the JSON, and render the Markdown next to it."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.listeners.measuring import PROTOCOLS, connections, readings
from benchmarks.listeners.report import render
from benchmarks.listeners.results import FULL, QUICK, Plan, Results
from benchmarks.throughput.machine import Conditions, Watch, this_machine
from shared.observability.logging import configure_logging

RESULTS = Path(__file__).parents[1] / "results"

T = TypeVar("T")


def run(plan: Plan) -> Results:
    """Measure everything the plan asks for."""
    conditions: list[Conditions] = []

    def watched(subject: str, measured: Callable[[Path], T]) -> T:
        watch = Watch(subject)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
            found = measured(Path(directory))
        conditions.append(watch.conditions())
        print(f"{subject}: measured in {conditions[-1].seconds:.0f} s", flush=True)
        return found

    read = watched("reading", partial(readings, plan))
    opened = tuple(watched(f"connections, {PROTOCOLS[kind]}", partial(connections, kind, plan)) for kind in PROTOCOLS)
    return Results(
        made_at=f"{datetime.now(UTC):%Y-%m-%d}",
        plan=plan,
        machine=this_machine(),
        conditions=tuple(conditions),
        readings=read,
        connections=opened,
    )


def report(directory: Path) -> None:
    """Render the report from the JSON in this directory."""
    kept = Results.model_validate_json((directory / "listeners.json").read_text(encoding="utf-8"))
    (directory / "listeners.md").write_text(render(kept), encoding="utf-8")


def main() -> None:
    """Run the benchmark, or only render the stored results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.listeners")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything still runs")
    parser.add_argument("--render", action="store_true", help="measure nothing, render the kept JSON again")
    parser.add_argument("--output", type=Path, default=RESULTS, help="directory of listeners.json and listeners.md")
    arguments = parser.parse_args()
    configure_logging("WARNING")
    if not arguments.render:
        results = run(QUICK if arguments.quick else FULL)
        (arguments.output / "listeners.json").write_text(results.model_dump_json(indent=2) + "\n", encoding="utf-8")
    report(arguments.output)


if __name__ == "__main__":
    main()
