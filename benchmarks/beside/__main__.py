"""`python -m benchmarks.beside CHECKOUT`: measure this build beside another one, and render the Markdown."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from benchmarks.beside import reads, writes
from benchmarks.beside.results import Results, render
from benchmarks.command import ROOT, command, run_benchmark
from benchmarks.throughput.machine import Watches, this_machine

PARTS = {"reads": reads.measure, "writes": writes.measure}
CAVEAT = "Each build uses the packages of its `.venv`; without one, those of this build."


def run(part: str, before: Path, *, is_quick: bool) -> Results:
    """Measure a part of both builds."""
    watches = Watches()
    measured = PARTS[part](before, ROOT, watches, is_quick=is_quick)
    return Results(
        part=part,
        run="quick" if is_quick else "full",
        made_at=f"{datetime.now(UTC):%Y-%m-%d}",
        method=measured.method,
        caveats=(CAVEAT, *measured.caveats),
        machine=this_machine(),
        conditions=tuple(watches.conditions),
        before=_commit(before),
        now=_commit(ROOT),
        tables=measured.tables,
    )


def _commit(checkout: Path) -> str:
    asked = ["git", "-C", str(checkout), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(asked, check=False, capture_output=True, text=True).stdout.strip() or "an unknown commit"


def main() -> None:
    """Run the benchmark, or only render the stored results."""
    parser = command("beside")
    parser.add_argument("checkout", type=Path, nargs="?", default=ROOT, help="of the earlier build; default: this one")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="measure these parts alone")
    arguments = parser.parse_args()
    for part in arguments.only:
        measure = partial(run, part, arguments.checkout.resolve(), is_quick=arguments.quick)
        run_benchmark(f"beside-{part}", arguments, measure, Results, render)


if __name__ == "__main__":
    main()
