"""`python -m benchmarks.fleet`: measure, store the JSON, and render the Markdown next to it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel

from benchmarks.command import RESULTS, ROOT, command, kept_name
from benchmarks.fleet.crowd import measure_crowd
from benchmarks.fleet.findable import measure_findable
from benchmarks.fleet.haystack import measure_haystack
from benchmarks.fleet.metrics import measure_metrics
from benchmarks.fleet.plan import FULL, QUICK, Plan
from benchmarks.fleet.report import render
from benchmarks.fleet.results import Part, Results
from benchmarks.fleet.scaling import filled
from benchmarks.fleet.storm import measure_storm
from benchmarks.throughput.machine import Watch, this_machine
from shared.service.logging import configure_logging
from tests.support.qdrant_server import qdrant_url

SCALING = ROOT / "docs" / "scaling.md"
# Outside the repository, which has no copy.
HAYSTACK = ROOT.parent / "shared" / "retrieval" / "corpora" / "haystack.jsonl"

Measure = Callable[[Plan, Path], BaseModel]

PARTS: Mapping[str, Measure] = {
    "storm": lambda plan, _: measure_storm(plan),
    "crowd": lambda plan, _: measure_crowd(plan),
    "findable": lambda plan, _: measure_findable(plan),
    "haystack": measure_haystack,
    "metrics": lambda plan, _: measure_metrics(plan),
}


def run(names: Sequence[str], plan: Plan, haystack: Path, directory: Path) -> None:
    """Measure these parts; each is kept as soon as it is there, and the other parts stay as they were."""
    for name in names:
        watch = Watch(name)
        found = PARTS[name](plan, haystack)
        conditions = watch.conditions()
        part = Part(made_at=f"{datetime.now(UTC):%Y-%m-%d}", plan=plan.name, index=_index(), conditions=conditions)
        _keep(name, part, found, directory)
        print(f"{name}: measured in {conditions.seconds:.0f} s", flush=True)


def _keep(name: str, part: Part, found: BaseModel, directory: Path) -> None:
    before = read(directory)
    results = Results.model_validate(
        {
            **before.model_dump(),
            "machine": this_machine().model_dump(),
            "parts": {**before.model_dump()["parts"], name: part.model_dump()},
            name: found.model_dump(),
        }
    )
    _kept(directory).write_text(results.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read(directory: Path) -> Results:
    """Return what is kept in this directory; nothing is measured yet where there is no file."""
    kept = _kept(directory)
    if not kept.exists():
        return Results(machine=this_machine(), parts={})
    return Results.model_validate_json(kept.read_text(encoding="utf-8"))


def report(directory: Path) -> None:
    """Render the report from the JSON in this directory, and docs/scaling.md from the committed JSON."""
    rendered = _kept(directory).with_suffix(".md")
    rendered.write_text(render(read(directory)), encoding="utf-8")
    print(f"Wrote {rendered}")
    if directory == RESULTS and not qdrant_url():
        SCALING.write_text(filled(SCALING.read_text(encoding="utf-8"), read(directory)), encoding="utf-8")
        print(f"Wrote {SCALING}")


def _kept(directory: Path) -> Path:
    return directory / f"{kept_name('fleet')}.json"


def _index() -> str:
    return "a Qdrant server" if qdrant_url() else "Qdrant Edge"


def main() -> None:
    """Run the benchmark, or only render what is kept."""
    arguments = _arguments()
    configure_logging("WARNING")
    if not arguments.render:
        run(arguments.only, QUICK if arguments.quick else FULL, arguments.haystack, arguments.output)
    report(arguments.output)


def _arguments() -> argparse.Namespace:
    parser = command("fleet")
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=list(PARTS), help="measure these parts, and keep the others"
    )
    parser.add_argument("--haystack", type=Path, default=HAYSTACK, help="a corpus: one tool as JSON a line")
    arguments = parser.parse_args()
    if "haystack" in arguments.only and not arguments.render and not arguments.haystack.exists():
        parser.error(f"no corpus at {arguments.haystack}: give one with --haystack, or other parts with --only")
    return arguments


if __name__ == "__main__":
    main()
