"""The files that the demo's servers work on: an empty repository, an empty directory."""

from __future__ import annotations

import shutil
from pathlib import Path

from toolscale.demo_servers.commands import run


def prepare_scratch(directory: Path) -> Path:
    """Return `directory` with a `files` directory and, where git is installed, a `repository` in it.

    What is there already stays as it is.
    """
    (directory / "files").mkdir(parents=True, exist_ok=True)
    git = shutil.which("git")
    if git and not (directory / "repository" / ".git").exists():
        run([git, "init", "--quiet", "repository"], directory)
    return directory
