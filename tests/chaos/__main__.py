"""`make chaos`: `python -m tests.chaos [--only schedules] [--short] [--seed N] [--output DIRECTORY]`."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from shared.service.logging import configure_logging
from tests.chaos.harness import run
from tests.chaos.plan import FIXED_SEED, LONG, ON_A_SERVER, SHORT
from tests.chaos.playing import play_all
from tests.chaos.report import faults, schedules, write
from tests.chaos.results import Outcome, Played, Results, read
from tests.support.qdrant_cluster import BINARY
from tests.support.redis_server import PROGRAM

SCHEDULES, SCHEDULES_SHORT = 1_000, 50

Part = Callable[[argparse.Namespace, Sequence[int]], tuple[Results, bool]]


def main() -> int:
    """Run the parts, print the results, and return 0 if the catalogue always converged to the truth."""
    arguments = _arguments()
    # a fixed one, so that results can be compared, and a new one, so that more is found
    seeds = (FIXED_SEED, random.randrange(1_000_000)) if arguments.seed is None else (arguments.seed,)
    passed = True
    for name in arguments.only:
        found, has_passed = PARTS[name](arguments, seeds)
        passed = passed and has_passed
        if arguments.output:
            write(read(arguments.output).replaced_by(found), arguments.output)
    return 0 if passed else 1


def _play_schedules(arguments: argparse.Namespace, seeds: Sequence[int]) -> tuple[Results, bool]:
    configure_logging("ERROR")
    count = arguments.schedules or (SCHEDULES_SHORT if arguments.short else SCHEDULES)
    found = play_all(count, seeds[-1], _say_played)
    _say(*schedules(found), "", *(run.failure for run in found.runs if run.failure))
    return Results(schedules=found), found.passed


def _strike_faults(arguments: argparse.Namespace, seeds: Sequence[int]) -> tuple[Results, bool]:
    configure_logging("INFO")
    plan = (SHORT if arguments.short else ON_A_SERVER if BINARY else LONG).scaled(arguments.share)
    found = list[Outcome]()
    for seed in seeds:
        directory = Path(tempfile.mkdtemp(prefix="chaos-")) / "run"
        _say(f"seed {seed}, logs in {directory}")
        found.append(outcome := run(plan, seed, directory))
        _say(*faults(outcome), "", *outcome.differences[:20], "")
    return Results(faults=tuple(found)), all(outcome.passed for outcome in found)


PARTS: dict[str, Part] = {"schedules": _play_schedules, "faults": _strike_faults}


def _say_played(run: Played) -> None:
    _say(f"{run.what}, {run.store}: {run.schedules} schedules in {run.seconds:g} s, {run.failure or 'all held'}")


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join((*lines, "")))
    sys.stdout.flush()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="these parts; others stay kept")
    parser.add_argument("--short", action="store_true", help="12 servers, a few of each fault, 50 schedules: minutes")
    parser.add_argument("--seed", type=int, help="repeat the choices of a run; it prints its seeds")
    parser.add_argument("--schedules", type=int, help=f"so many schedules of each kind; {SCHEDULES:,} unless short")
    parser.add_argument("--share", type=float, default=1.0, help="this share of the faults, at least one of a kind")
    parser.add_argument("--output", type=Path, help="directory for chaos.json and chaos.md")
    arguments = parser.parse_args()
    if PROGRAM is None:
        parser.error("redis-server is not installed: apt-get install redis-server")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
