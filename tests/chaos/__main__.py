"""`make chaos`: `python -m tests.chaos [--short] [--share 0.2] [--seed N] [--output DIRECTORY]`."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from shared.logging import configure_logging
from tests.chaos.harness import run
from tests.chaos.plan import LONG, SHORT
from tests.chaos.report import render, write


def main() -> int:
    """Run, print the report, and return 0 where the catalogue equalled the truth."""
    arguments = _arguments()
    configure_logging("INFO")
    seed = arguments.seed if arguments.seed is not None else random.randrange(1_000_000)
    plan = (SHORT if arguments.short else LONG).scaled(arguments.share)
    directory = Path(tempfile.mkdtemp(prefix="chaos-")) / "run"
    sys.stdout.write(f"seed {seed}, logs in {directory}\n")
    sys.stdout.flush()
    outcome = run(plan, seed, directory)
    sys.stdout.write("\n".join([*render(outcome), "", *outcome.differences[:20], ""]))
    if arguments.output:
        write(outcome, arguments.output)
    return 0 if outcome.passed else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--short", action="store_true", help="20 servers and a few of each fault, in a minute")
    parser.add_argument("--seed", type=int, help="repeat the choices of a run; it prints its seed")
    parser.add_argument("--share", type=float, default=1.0, help="this share of the faults, at least one of a kind")
    parser.add_argument("--output", type=Path, help="directory for chaos.json and chaos.md")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
