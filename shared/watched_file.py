"""An operator's file that may change at run time; it is parsed again only after a change."""

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
    """The parsed value of a file. Reading it is cheap, and safe from several threads.

    If the file becomes invalid or is deleted, the last value stays and an error is logged.
    """

    def __init__(self, path: Path, read: Callable[[Path], T]) -> None:
        """Read the file.

        Raises:
            ConfigInvalid: it cannot be used.
        """
        self._path, self._read, self._lock = path, read, threading.Lock()
        self._status = _status(path)  # taken before the file is read, so the next call notices a change in between
        self._value = read(path)

    def read(self) -> T:
        """Return the current value: the same object as long as the file does not change."""
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
    """Return a value that differs after every edit; a replaced file has another inode."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
