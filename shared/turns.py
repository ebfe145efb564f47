"""Large lists take turns, so that memory does not grow with the number of looks.

What a list takes from its first byte to the last tool written, parsed and embedded on the way, can be a hundred times
that of a usual one. Many looks hold small lists at a time; only a few hold large ones, and the others wait.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager


class Turns:
    """Which servers' looks may hold a large list: at most `limit` at a time. Safe to use from several threads.

    No look waits for another turn while it has one, so whoever has one gets to its end and gives it back.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._holders: set[str] = set()
        self._lock = threading.Lock()

    def try_take(self, server_id: str) -> bool:
        """Return whether it is this server's turn; once it is, it stays so until `given_back`."""
        with self._lock:
            if server_id not in self._holders and len(self._holders) < self._limit:
                self._holders.add(server_id)
            return server_id in self._holders

    @contextmanager
    def given_back(self, server_id: str) -> Generator[None]:
        """Give the turn back, if the server has one, when the block ends."""
        try:
            yield
        finally:
            with self._lock:
                self._holders.discard(server_id)
