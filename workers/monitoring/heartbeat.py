"""A file that tells a health check that a process without a port does its work."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from shared.errors import ConfigInvalid


class Heartbeat:
    """Touches a file each time that all parts of a process have done their work since; without a path it does nothing.

    So the file grows old as soon as one part of several stands still. Safe from several threads.
    """

    def __init__(self, path: Path | None, parts: Collection[str]) -> None:
        """Take the names of the parts.

        Raises:
            ConfigInvalid: the file could not be touched.
        """
        if path and not os.access(path.parent, os.W_OK):
            raise ConfigInvalid(f"setting heartbeat: cannot write to {path.parent}")
        self._path = path
        self._parts = frozenset(parts)
        self._done: set[str] = set()
        self._lock = threading.Lock()

    def beat(self, part: str) -> None:
        """Note that this part has done its work."""
        with self._lock:
            self._done.add(part)
            if self._path and self._done >= self._parts:
                self._done.clear()
                with suppress(OSError):  # an old file tells as much as a missing one
                    self._path.touch()
