"""The command of a benchmark: it measures, stores the JSON, and renders the Markdown next to it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from shared.service.logging import configure_logging
from tests.support.qdrant_server import qdrant_url

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
# Outside the repository, which has no copy.
DATA = ROOT.parent / "shared" / "retrieval"

R = TypeVar("R", bound=BaseModel)


def command(name: str, *, has_quick: bool = True, needs_demo: bool = False) -> argparse.ArgumentParser:
    """Return the parser of `python -m benchmarks.NAME` with the common options."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    if has_quick:
        parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything still runs")
    if needs_demo:
        parser.add_argument("--demo", type=Path, default=ROOT / ".demo", help="directory of the demo's servers")
    parser.add_argument("--render", action="store_true", help="measure nothing, render the stored JSON again")
    parser.add_argument("--output", type=Path, default=RESULTS, help="directory of the JSON and the Markdown")
    return parser


def kept_name(name: str) -> str:
    """Return the name of the results of a benchmark of the index: those on a Qdrant server have files of their own."""
    return f"{name}-qdrant" if qdrant_url() else name


def run_benchmark(
    name: str, arguments: argparse.Namespace, measure: Callable[[], R], model: type[R], render: Callable[[R], str]
) -> R:
    """Measure and store `NAME.json`, unless `--render` is given; render `NAME.md` from it, and return the results."""
    configure_logging("ERROR")
    arguments.output.mkdir(parents=True, exist_ok=True)  # before a measurement that may take an hour
    kept: Path = arguments.output / f"{name}.json"
    if not arguments.render:
        kept.write_text(measure().model_dump_json(indent=2) + "\n", encoding="utf-8")
    results = model.model_validate_json(kept.read_bytes())
    rendered = kept.with_suffix(".md")
    rendered.write_text(render(results), encoding="utf-8")
    print(f"Wrote {rendered}")
    return results
