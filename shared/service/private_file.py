"""Files and directories that only their owner can read."""

from __future__ import annotations

import os
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Replace the file at once, so that no reader finds a part of the text.

    Raises:
        OSError: the file cannot be written.
    """
    written = path.with_name(f".{path.name}.new")
    with os.fdopen(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    written.replace(path)


def make_private_directory(path: Path) -> None:
    """Create the directory and its missing parents, each for its owner only; existing ones stay as they are.

    Raises:
        OSError: a directory cannot be created.
    """
    for directory in (*reversed(path.parents), path):
        directory.mkdir(mode=0o700, exist_ok=True)
