"""The read side: an MCP service that finds tools and says what that saved."""

from pathlib import Path
from runpy import run_path

run_path(str(Path(__file__).parents[1] / "shared" / "own_packages.py"))["refuse_others"]("shared")
