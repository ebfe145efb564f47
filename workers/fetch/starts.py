"""Turns to start stdio servers: a start takes a core for seconds, so many at a time would all run out of time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager

from workers.fetch.interrupt import FetchInterrupted, interruptible

# A container may have fewer cores than its machine.
_MOST_STARTS = 8


def starts_at_once() -> int:
    """Return the number of stdio servers that may start at the same time: about the number of cores."""
    return min(os.cpu_count() or 1, _MOST_STARTS)


class StartTurns:
    """At most `limit` starts at a time in this process; the others wait. Safe to use from several threads."""

    def __init__(self, limit: int) -> None:
        self.waiting = 0
        self._free = limit
        self._changed = threading.Condition()

    @contextmanager
    def turn(self, server_id: str) -> Generator[Callable[[], None]]:
        """Wait for a turn, which ends with the block, or earlier with a call of the yielded function.

        Raises:
            FetchInterrupted: `interrupt_fetches` was called during the wait.
        """
        self._acquire(server_id)
        with ExitStack() as turn:
            turn.callback(self._release)
            yield turn.close

    def _acquire(self, server_id: str) -> None:
        is_interrupted = threading.Event()

        def interrupt() -> None:
            is_interrupted.set()
            with self._changed:
                self._changed.notify_all()

        with interruptible(interrupt), self._changed:
            self.waiting += 1
            self._changed.wait_for(lambda: self._free or is_interrupted.is_set())
            self.waiting -= 1
            if is_interrupted.is_set():
                raise FetchInterrupted(f"{server_id}: interrupted, since this process ends")
            self._free -= 1

    def _release(self) -> None:
        with self._changed:
            self._free += 1
            self._changed.notify()
