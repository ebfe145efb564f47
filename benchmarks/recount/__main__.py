"""`python -m benchmarks.recount`: play a session on the demo's servers, and count each number of it again.

It stores the JSON and renders the Markdown next to it. The exit code is 1 if a number differs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.command import command, run_benchmark
from benchmarks.recount.measuring import LAST_REPORT, record, recounted
from benchmarks.recount.report import render
from benchmarks.recount.results import Results, results_of
from benchmarks.recount.session import demo_plan


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
    """Measure, unless only the stored JSON is rendered again."""
    arguments = command("recount", has_quick=False, needs_demo=True).parse_args()
    results = run_benchmark("recount", arguments, lambda: measure(arguments.demo), Results, render)
    print(f"{results.compared:,} numbers, {len(results.differences):,} differ.")
    sys.exit(1 if results.differences else 0)


if __name__ == "__main__":
    main()
