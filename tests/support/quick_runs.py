"""A benchmark run as a person runs it, at sizes that show that it still works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def quick_run(benchmark: str, output: Path, *options: str) -> None:
    """Run `python -m benchmarks.<benchmark> --quick`, which leaves its record in `output`; fail where it fails."""
    ran = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{benchmark}", "--quick", "--output", str(output), *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
