"""`python -m benchmarks.migration`: measure, store the JSON, and render the Markdown next to it."""

from __future__ import annotations

import argparse
import tempfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.migration.measuring import measure
from benchmarks.migration.results import Results, Size, render
from benchmarks.throughput.machine import Conditions, Watch, this_machine
from shared.index import open_engine
from shared.observability.logging import configure_logging
from shared.settings import load_settings
from tests.support.qdrant_server import emptied_qdrant, qdrant_url

RESULTS = Path(__file__).parents[1] / "results"
FULL, QUICK = (10_000, 100_000), (200,)


def run(sizes: tuple[int, ...], repetitions: int) -> Results:
    """Measure on the empty Qdrant server at QDRANT_URL; without it, on Qdrant Edge."""
    measured: list[Size] = []
    conditions: list[Conditions] = []
    for tools in sizes:
        watch = Watch(f"{tools} tools")
        with emptied_qdrant(), tempfile.TemporaryDirectory() as directory:
            settings = load_settings(data_dir=Path(directory))
            with closing(open_engine(settings)) as engine:
                measured.append(measure(engine, tools, repetitions))
        conditions.append(watch.conditions())
        print(f"{tools} tools: measured in {conditions[-1].seconds:.0f} s", flush=True)
    return Results(
        made_at=f"{datetime.now(UTC):%Y-%m-%d}",
        engine="a Qdrant server" if qdrant_url() else "Qdrant Edge",
        machine=this_machine(),
        conditions=tuple(conditions),
        sizes=tuple(measured),
    )


def report(directory: Path) -> None:
    """Render the report from the JSON in this directory."""
    kept = Results.model_validate_json((directory / "migration.json").read_text(encoding="utf-8"))
    (directory / "migration.md").write_text(render(kept), encoding="utf-8")


def main() -> None:
    """Run the benchmark, or only render what is kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.migration")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything still runs")
    parser.add_argument("--render", action="store_true", help="measure nothing, render the kept JSON again")
    parser.add_argument("--output", type=Path, default=RESULTS, help="directory of migration.json and migration.md")
    arguments = parser.parse_args()
    configure_logging("WARNING")
    if not arguments.render:
        results = run(QUICK if arguments.quick else FULL, repetitions=2 if arguments.quick else 9)
        (arguments.output / "migration.json").write_text(results.model_dump_json(indent=2) + "\n", encoding="utf-8")
    report(arguments.output)


if __name__ == "__main__":
    main()
