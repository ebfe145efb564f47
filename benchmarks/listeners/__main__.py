"""`python -m benchmarks.listeners`: measure, store the JSON, and render the Markdown next to it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.command import command, run_benchmark
from benchmarks.listeners.measuring import PROTOCOLS, connections, readings
from benchmarks.listeners.report import render
from benchmarks.listeners.results import FULL, QUICK, Plan, Results
from benchmarks.throughput.machine import Watches, this_machine

T = TypeVar("T")


def run(plan: Plan) -> Results:
    """Measure everything the plan asks for."""
    watches = Watches()
    read = watches.measure("reading", lambda: _in_directory(partial(readings, plan)))
    opened = tuple(
        watches.measure(f"connections, {name}", partial(_in_directory, partial(connections, kind, plan)))
        for kind, name in PROTOCOLS.items()
    )
    return Results(
        made_at=f"{datetime.now(UTC):%Y-%m-%d}",
        plan=plan,
        machine=this_machine(),
        conditions=tuple(watches.conditions),
        readings=read,
        connections=opened,
    )


def _in_directory(measure: Callable[[Path], T]) -> T:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        return measure(Path(directory))


def main() -> None:
    """Run the benchmark, or only render the stored results."""
    arguments = command("listeners").parse_args()
    run_benchmark("listeners", arguments, lambda: run(QUICK if arguments.quick else FULL), Results, render)


if __name__ == "__main__":
    main()
