"""A file of the operator's that may change while we run: what it says now, read again only when it changed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from shared.errors import ConfigInvalid

T = TypeVar("T")

_log = structlog.get_logger()


class WatchedFile(Generic[T]):
    """What `read` makes of the file; cheap to ask, safe from several threads.

    A file that breaks, or goes away, while we run leaves what it said before, and an error in the log.
    """

    def __init__(self, path: Path, read: Callable[[Path], T]) -> None:
        """Read the file.

        Raises:
            ConfigInvalid: it cannot be used.
        """
        self._path, self._read, self._lock = path, read, threading.Lock()
        self._status = _status(path)  # before the file is read: a change in between is seen the next time
        self._value = read(path)

    def read(self) -> T:
        """Return what the file says now, the same object as long as it does not change."""
        with self._lock:
            status = _status(self._path)
            if status != self._status:
                self._status = status
                self._read_again()
            return self._value

    def _read_again(self) -> None:
        try:
            self._value = self._read(self._path)
        except ConfigInvalid as error:
            _log.error("auth_file_not_read", path=str(self._path), reason=str(error))


def _status(path: Path) -> tuple[int, int, int] | None:
    """Return what is different after every edit; a file that is replaced is another inode."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
