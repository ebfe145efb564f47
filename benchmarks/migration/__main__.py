"""`python -m benchmarks.migration`: measure, store the JSON, and render the Markdown next to it."""

from __future__ import annotations

import tempfile
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from benchmarks.command import command, run_benchmark
from benchmarks.migration.measuring import measure
from benchmarks.migration.results import Results, Size, render
from benchmarks.throughput.machine import Watches, this_machine
from shared.index import open_engine
from shared.settings import load_settings
from tests.support.qdrant_server import emptied_qdrant, qdrant_url

FULL, QUICK = (10_000, 100_000), (200,)


def run(sizes: tuple[int, ...], repetitions: int) -> Results:
    """Measure on the empty Qdrant server at QDRANT_URL; without it, on Qdrant Edge."""
    watches = Watches()
    measured = [watches.measure(f"{tools} tools", partial(_measured, tools, repetitions)) for tools in sizes]
    return Results(
        made_at=f"{datetime.now(UTC):%Y-%m-%d}",
        engine="a Qdrant server" if qdrant_url() else "Qdrant Edge",
        machine=this_machine(),
        conditions=tuple(watches.conditions),
        sizes=tuple(measured),
    )


def _measured(tools: int, repetitions: int) -> Size:
    with (
        emptied_qdrant(),
        tempfile.TemporaryDirectory() as directory,
        closing(open_engine(load_settings(data_dir=Path(directory)))) as engine,
    ):
        return measure(engine, tools, repetitions)


def main() -> None:
    """Run the benchmark, or only render what is kept."""
    arguments = command("migration").parse_args()
    sizes, repetitions = (QUICK, 2) if arguments.quick else (FULL, 9)
    run_benchmark("migration", arguments, lambda: run(sizes, repetitions), Results, render)


if __name__ == "__main__":
    main()
