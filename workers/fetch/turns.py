"""Bounds on the fetches of one process: slots for large lists, turns to start programs, and interruption at its end."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Hashable
from contextlib import ExitStack, contextmanager

from shared.errors import Retryable

# A container may have fewer cores than its machine.
_MOST_STARTS = 8
_INTERRUPT_EVERY_S = 0.05

# Per process, since they end with the process.
_running_fetches: set[Callable[[], object]] = set()
_changing = threading.Lock()


class FetchInterrupted(Retryable):
    """A fetch ended for an internal reason: the server is not at fault, and its intent is retried."""


def interrupt_fetches() -> None:
    """Interrupt every fetch that runs in this process."""
    with _changing:
        for interrupt in _running_fetches:
            interrupt()


def interrupt_fetches_after(seconds: float) -> None:
    """Interrupt all fetches that run after so many seconds, from a thread; returns at once.

    Another worker repeats an interrupted reconciliation, and its server is not blamed.
    """

    def interrupt() -> None:
        time.sleep(seconds)
        while True:  # until the process ends: tasks that wait in the pool start when others end
            interrupt_fetches()
            time.sleep(_INTERRUPT_EVERY_S)

    threading.Thread(target=interrupt, name="worker's end", daemon=True).start()


@contextmanager
def interruptible(interrupt: Callable[[], object]) -> Generator[None]:
    """Have `interrupt_fetches` call this function until the block ends."""
    with _changing:
        _running_fetches.add(interrupt)
    try:
        yield
    finally:
        with _changing:
            _running_fetches.discard(interrupt)


class LargePayloadSlots:
    """Slots that bound the memory of a process: at most `limit` holders at a time. Safe to use from several threads.

    A large list of tools needs a hundred times the memory of a usual one. Many small lists are read at a time, but only
    a few large ones; further large ones wait. A holder never waits for a second slot, so there is no deadlock.
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

    @contextmanager
    def released(self, holder: Hashable) -> Generator[None]:
        """Release the holder's slot, if it has one, when the block ends."""
        try:
            yield
        finally:
            with self._lock:
                self._holders.discard(holder)


def starts_at_once() -> int:
    """Return the number of stdio servers that may start at the same time: about the number of cores."""
    return min(os.cpu_count() or 1, _MOST_STARTS)


class StartTurns:
    """Turns to start stdio servers: at most `limit` at a time. Safe to use from several threads.

    A start takes a core for seconds, so many at a time would all run out of time.
    """

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

        def release() -> None:
            with self._changed:
                self._free += 1
                self._changed.notify()

        with ExitStack() as turn:
            turn.callback(release)
            yield turn.close
