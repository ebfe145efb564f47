"""Does this worker do what waits for it? By its own steady clock alone, since those of senders may differ."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

# Where a thread is free, what waits is begun within milliseconds, and the quickest tasks end in as many.
IDLE_AT_MOST_S = 15.0


@dataclass(frozen=True, slots=True)
class WorkerSample:
    """A worker at one moment: messages that wait, tasks that it has ended so far, and whether all its threads work."""

    waiting: int
    ended: int
    is_full: bool


class WorkerProgress:
    """Learns from what is seen of a worker how long nothing has moved although something waits."""

    def __init__(self, listing_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Take how long a look may wait for its server: where all threads work, nothing need end any sooner."""
        self._listing_s = listing_s
        self._clock = clock
        self._last = WorkerSample(0, 0, is_full=False)
        self._still_since: float | None = None

    def add_sample(self, sample: WorkerSample) -> None:
        """Note what was seen now."""
        if not sample.waiting:
            self._still_since = None
        elif self._still_since is None or sample.ended != self._last.ended:
            self._still_since = self._clock()
        self._last = sample

    def problem(self) -> str | None:
        """Return what is wrong, in words; None while the worker does what waits for it."""
        if self._still_since is None:
            return None
        still_s = self._clock() - self._still_since
        allowed_s = IDLE_AT_MOST_S + (self._listing_s if self._last.is_full else 0.0)
        if still_s <= allowed_s:
            return None
        return f"{self._last.waiting} messages wait, and no task has ended for {still_s:.0f} s"
