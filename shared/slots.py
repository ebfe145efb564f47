"""What is large takes turns, so that memory does not grow with the number of those who might hold it.

What a list of tools takes from its first byte to the last tool written can be a hundred times that of a usual one, and
so can the result of a call. Many hold something small at a time; only a few something large, and the others wait.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Hashable
from contextlib import contextmanager


class LargePayloadSlots:
    """Who may hold something large: at most `limit` at a time. Safe to use from several threads.

    Who waits for a turn has none, so whoever has one gets to the end and gives it back.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._holders: set[Hashable] = set()
        self._lock = threading.Lock()

    def try_acquire(self, holder: Hashable) -> bool:
        """Return whether it is this holder's turn; once it is, it stays so until it is given back."""
        with self._lock:
            if holder not in self._holders and len(self._holders) < self._limit:
                self._holders.add(holder)
            return holder in self._holders

    def release(self, holder: Hashable) -> None:
        """Let another have this holder's turn, if it has one."""
        with self._lock:
            self._holders.discard(holder)

    @contextmanager
    def released(self, holder: Hashable) -> Generator[None]:
        """Give the holder's turn back, if it has one, when the block ends."""
        try:
            yield
        finally:
            self.release(holder)
