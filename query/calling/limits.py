"""Limits over all calls: calls in flight per caller, and large results in memory."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from shared.errors import CallsExhausted


class Admission:
    """Admits calls within a limit per caller, and large results within a limit for all callers.

    Safe to use from several threads.
    """

    def __init__(self, per_caller: int, large_at_once: int) -> None:
        self._per_caller = per_caller
        self._large_at_once = large_at_once
        self._in_flight: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._large_results = threading.Semaphore(large_at_once)

    @contextmanager
    def admitted(self, caller: str) -> Generator[ResultSlot]:
        """Count the block as a call of this caller and yield the slot of its result, which closes with the block.

        Raises:
            CallsExhausted: the caller has as many calls in flight as the limit allows.
        """
        self._begin(caller)
        slot = self.slot()
        try:
            yield slot
        finally:
            slot.close()
            self._end(caller)

    def slot(self) -> ResultSlot:
        """Return a slot that is not acquired yet."""
        return ResultSlot(self._large_results)

    def no_slot(self) -> CallsExhausted:
        """Return the error for a call that timed out before it could acquire its slot."""
        limit = f"{self._large_at_once} large results are being processed, as many as the limit allows"
        return CallsExhausted(
            f"{limit}; request less data, or call again in a few seconds. The server may have executed this call"
        )

    def _begin(self, caller: str) -> None:
        with self._lock:
            if self._in_flight[caller] >= self._per_caller:
                limit = f"{caller} has {self._per_caller} calls in flight, as many as the limit per caller allows"
                raise CallsExhausted(f"{limit}; wait until a call has ended, or call again in a second")
            self._in_flight[caller] += 1

    def _end(self, caller: str) -> None:
        with self._lock:
            self._in_flight[caller] -= 1
            if not self._in_flight[caller]:
                del self._in_flight[caller]


class ResultSlot:
    """Permission to keep one large result in memory. Acquired in one event loop, closed in any thread."""

    def __init__(self, semaphore: threading.Semaphore) -> None:
        self.is_waiting = False
        self._semaphore = semaphore
        self._is_held = False
        self._is_closed = False
        self._lock = threading.Lock()

    def try_acquire(self) -> bool:
        """Return whether a large result may be read; after `close`, always: its call keeps no result."""
        with self._lock:
            if not (self._is_held or self._is_closed):
                self._is_held = self._semaphore.acquire(blocking=False)
            self.is_waiting = not (self._is_held or self._is_closed)
            return not self.is_waiting

    def release(self) -> bool:
        """Return the slot to the semaphore, and whether it was held."""
        with self._lock:
            was_held, self._is_held = self._is_held, False
            if was_held:
                self._semaphore.release()
            return was_held

    def close(self) -> None:
        """Release the slot and never hold it again."""
        with self._lock:
            self._is_closed = True
        self.release()
