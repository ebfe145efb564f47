"""Where the time of a request went, for its log line and for benchmarks."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timings:
    """The parts of one search, in milliseconds: embedding the query, searching, the baseline, and the answer's form."""

    embed_ms: float
    search_ms: float
    sum_ms: float
    fit_ms: float

    @property
    def total_ms(self) -> float:
        """Return the sum of the parts."""
        return self.embed_ms + self.search_ms + self.sum_ms + self.fit_ms


class Stopwatch:
    """Started when made; each lap ends where the next begins."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap_ms(self) -> float:
        """Return the milliseconds since the last lap."""
        now = time.perf_counter()
        elapsed, self._last = now - self._last, now
        return elapsed * 1e3
