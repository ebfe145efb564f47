"""Slots for large payloads, which bound the memory of a process.

A large list of tools, or a large result of a call, needs a hundred times the memory of a usual one.
Many small payloads are processed at a time, but only a few large ones; further large ones wait for a slot.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Hashable
from contextlib import contextmanager


class LargePayloadSlots:
    """At most `limit` holders at a time. Safe to use from several threads.

    A holder never waits for a second slot, so there is no deadlock.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._holders: set[Hashable] = set()
        self._lock = threading.Lock()

    def try_acquire(self, holder: Hashable) -> bool:
        """Return whether the holder has a slot, acquired now or before."""
        with self._lock:
            if holder not in self._holders and len(self._holders) < self._limit:
                self._holders.add(holder)
            return holder in self._holders

    def release(self, holder: Hashable) -> None:
        """Release the holder's slot, if it has one."""
        with self._lock:
            self._holders.discard(holder)

    @contextmanager
    def released(self, holder: Hashable) -> Generator[None]:
        """Release the holder's slot, if it has one, when the block ends."""
        try:
            yield
        finally:
            self.release(holder)
