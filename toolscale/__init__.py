"""The command line, and the composition of workers and query service in one process."""

from pathlib import Path
from runpy import run_path

run_path(str(Path(__file__).parents[1] / "shared" / "own_packages.py"))["refuse_others"]("shared", "workers", "query")
