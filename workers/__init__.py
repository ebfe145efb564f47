"""The write side: from a server-up event to points in the index."""

from pathlib import Path
from runpy import run_path

run_path(str(Path(__file__).parents[1] / "shared" / "own_packages.py"))["refuse_others"]("shared")
