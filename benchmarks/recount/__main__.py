"""`python -m benchmarks.recount`: play a session on the demo's servers, and count each number of it again.

It stores the JSON and renders the Markdown next to it. The exit code is 1 if a number differs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.recount.measuring import LAST_REPORT, record, recounted
from benchmarks.recount.report import render
from benchmarks.recount.results import Results, results_of
from benchmarks.recount.session import demo_plan

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def measure(demo: Path) -> Results:
    """Record the session on the demo's servers and return the recount."""
    plan = demo_plan(demo)
    recording = record(plan)
    return results_of(
        recounted(plan, recording),
        LAST_REPORT,
        servers=len(plan.servers),
        tools=len(recording.upstream.tools),
        messages=len(recording.exchanges),
    )


def main() -> None:
    """Do what the arguments ask for."""
    arguments = _arguments()
    kept, rendered = arguments.output / "recount.json", arguments.output / "recount.md"
    if not arguments.render:
        results = measure(arguments.demo)
        kept.write_text(results.model_dump_json(indent=2) + "\n", encoding="utf-8")
    results = Results.model_validate_json(kept.read_text(encoding="utf-8"))
    rendered.write_text(render(results), encoding="utf-8")
    print(f"{results.compared:,} numbers, {len(results.differences):,} differ. Wrote {rendered}")
    sys.exit(1 if results.differences else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recount")
    parser.add_argument("--demo", type=Path, default=ROOT / ".demo", help="directory of the demo's servers")
    parser.add_argument("--output", type=Path, default=RESULTS, help="directory of recount.json and recount.md")
    parser.add_argument("--render", action="store_true", help="play no session, render the kept JSON again")
    return parser.parse_args()


if __name__ == "__main__":
    main()
