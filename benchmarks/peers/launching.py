"""Starting the systems that are compared, each in its environment, with the vectors kept for it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.candidates import Candidate, interpreter
from benchmarks.peers.process import System, running


@dataclass(frozen=True, slots=True)
class Launcher:
    """Starts systems by name. `environments` and `vectors` are directories that are filled as needed."""

    candidates: Sequence[Candidate]
    environments: Path
    vectors: Path

    @property
    def names(self) -> list[str]:
        """Return the names of all systems, in their order."""
        return [candidate.name for candidate in self.candidates]

    def prepare(self) -> None:
        """Make the environments that are missing.

        Raises:
            subprocess.CalledProcessError: one cannot be made.
        """
        for candidate in self.candidates:
            interpreter(candidate, self.environments)

    def running(self, name: str, tools: Path) -> AbstractContextManager[System]:
        """Return a running system that reads the tools of this file."""
        (candidate,) = (candidate for candidate in self.candidates if candidate.name == name)
        vectors = self.vectors / f"{candidate.module}.npz"
        return running(candidate.module, interpreter(candidate, self.environments), tools, vectors)
