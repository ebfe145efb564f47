"""The progress of a worker, measured by its own monotonic clock, since the clocks of senders may differ."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

# A free thread starts a waiting task within milliseconds.
IDLE_AT_MOST_S = 15.0


@dataclass(frozen=True, slots=True)
class WorkerSample:
    """A worker at one moment: waiting messages, the number of ended tasks, and whether all its threads are busy."""

    waiting: int
    ended: int
    is_full: bool


class WorkerProgress:
    """Measures from samples for how long messages wait while no task ends."""

    def __init__(self, listing_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the time limit of a listing: a worker with no free thread may end no task for so long."""
        self._listing_s = listing_s
        self._clock = clock
        self._last = WorkerSample(0, 0, is_full=False)
        self._still_since: float | None = None

    def add_sample(self, sample: WorkerSample) -> None:
        """Add a sample of now."""
        if not sample.waiting:
            self._still_since = None
        elif self._still_since is None or sample.ended != self._last.ended:
            self._still_since = self._clock()
        self._last = sample

    def problem(self) -> str | None:
        """Return a problem once messages wait for too long and no task ends, else None."""
        if self._still_since is None:
            return None
        still_s = self._clock() - self._still_since
        allowed_s = IDLE_AT_MOST_S + (self._listing_s if self._last.is_full else 0.0)
        if still_s <= allowed_s:
            return None
        return f"{self._last.waiting} messages wait, and no task has ended for {still_s:.0f} s"
