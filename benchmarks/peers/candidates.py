"""The systems that are compared, and the environment of each."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

LOCKS = Path(__file__).parent / "environments"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A system: the module that asks it, the package and lock of its environment, and what it was given.

    Toolscale itself has no package here, and runs in the environment of the benchmark.
    """

    name: str
    module: str
    package: str | None
    given: str

    @property
    def lock(self) -> Path:
        """Return the file that pins its environment."""
        return LOCKS / f"{self.package}.lock"

    @property
    def version(self) -> str:
        """Return the version that is pinned; empty for Toolscale itself."""
        pins = (LOCKS / f"{self.package}.in").read_text(encoding="utf-8").split() if self.package else []
        return next((pin.partition("==")[2] for pin in pins if pin.startswith(f"{self.package}==")), "")


CANDIDATES = (
    Candidate("Toolscale", "toolscale_itself", None, "its defaults; a whole task or its steps in one call"),
    Candidate(
        "FastMCP BM25 search",
        "fastmcp_bm25",
        "fastmcp",
        "its defaults, ten results; tools carry their server's name in front, as mounted servers' tools do",
    ),
    Candidate(
        "toolsieve",
        "toolsieve",
        "toolsieve",
        "its defaults, ten results, the bundled model: its own, BAAI/bge-small-en-v1.5, has to be downloaded",
    ),
    Candidate(
        "tool-compass",
        "tool_compass",
        "tool-compass",
        "its defaults (hybrid, exact names first), ten results whatever their confidence, chains and statistics off, "
        "the bundled model in the process: its own, nomic-embed-text, needs Ollama and has to be downloaded",
    ),
)


def interpreter(candidate: Candidate, environments: Path) -> Path:
    """Return the Python of the candidate's environment, which is made where it is missing or its lock has changed.

    Raises:
        subprocess.CalledProcessError: it cannot be made.
    """
    if candidate.package is None:
        return Path(sys.executable)
    directory = environments / candidate.package
    python, made_from = directory / "bin" / "python", directory / "made-from"
    digest = sha256(candidate.lock.read_bytes()).hexdigest()
    if not made_from.exists() or made_from.read_text() != digest:
        print(f"Making the environment of {candidate.name} {candidate.version} ...", flush=True)
        _make(directory, python, candidate.lock)
        made_from.write_text(digest)
    return python


def _make(directory: Path, python: Path, lock: Path) -> None:
    uv = shutil.which("uv")
    # the lock has all packages; pip would also ask for a pin of each extra
    requirements = ["install", "--quiet", "--no-deps", "--require-hashes", "-r", str(lock)]
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(directory)], check=True)
    install = [uv, "pip", *requirements, "--python", str(python)] if uv else [str(python), "-m", "pip", *requirements]
    subprocess.run(install, check=True)
