"""Files that only their owner can read, and files that may change while we run."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from shared.errors import ConfigInvalid

T = TypeVar("T")
FileSignature = tuple[int, int, int] | None


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


MIN_FREE_BYTES = 32 << 20
"""Of the disk of a data directory: the index maps its files into memory, and a full disk kills the process."""


def disk_problem(directory: Path) -> str | None:
    """Return what is wrong with the disk of this directory, which may not exist yet; None where there is room."""
    nearest = next(path for path in (directory, *directory.parents) if path.exists())
    free_bytes = shutil.disk_usage(nearest).free
    if free_bytes >= MIN_FREE_BYTES:
        return None
    needs = f"of the {MIN_FREE_BYTES >> 20} MB that the index needs"
    return f"the disk of data_dir has {free_bytes >> 20} MB left, {needs}"


FREE_SOME = "free some, or name a directory on another disk by TOOLSCALE_DATA_DIR"


class WatchedFile(Generic[T]):
    """The parsed content of a file. Reads are cheap and safe from several threads.

    If the file becomes invalid or missing, the last content stays, and the error is logged.
    """

    def __init__(self, path: Path, read: Callable[[Path], T]) -> None:
        """Read the file.

        Raises:
            ConfigInvalid: the file is invalid.
        """
        self._path, self._read, self._lock = path, read, threading.Lock()
        self._signature = file_signature(path)  # before the file is read: a change in between causes another read
        self._value = read(path)

    def read(self) -> T:
        """Return the content of the file; the same object until the file changes."""
        with self._lock:
            signature = file_signature(self._path)
            if signature == self._signature:
                return self._value
            self._signature = signature
            try:
                self._value = self._read(self._path)
            except ConfigInvalid as error:
                import structlog  # noqa: PLC0415  # a quarter of a second, for programs that only write

                structlog.get_logger().error("access_file_not_read", path=str(self._path), reason=str(error))
            return self._value


def file_signature(path: Path) -> FileSignature:
    """Return a value that changes with every edit, None for a missing file; a replaced file has another inode."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
