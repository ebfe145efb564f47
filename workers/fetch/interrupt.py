"""Interruption of running fetches, so that a process can end while a server does not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from shared.errors import Retryable

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
    threading.Thread(target=_interrupt, args=(seconds,), name="worker's end", daemon=True).start()


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


def _interrupt(after_s: float) -> None:
    time.sleep(after_s)
    while True:  # until the process ends: tasks that wait in the pool start when others end
        interrupt_fetches()
        time.sleep(_INTERRUPT_EVERY_S)
