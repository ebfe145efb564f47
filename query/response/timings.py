"""The durations of a request's parts, for its log line and for benchmarks."""

from __future__ import annotations

import time
from dataclasses import dataclass

from shared.service.tracing import record_span


@dataclass(frozen=True, slots=True)
class Timings:
    """The parts of one search, in milliseconds: embedding the query, searching, the baseline, and the answer's form.

    All parts are 0 for a response that is sent again.
    """

    embed_ms: float = 0.0
    search_ms: float = 0.0
    sum_ms: float = 0.0
    fit_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        """Return the sum of the parts."""
        return self.embed_ms + self.search_ms + self.sum_ms + self.fit_ms


class Stopwatch:
    """Measures laps from its creation on; each lap ends where the next begins."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap_ms(self, part: str) -> float:
        """Return the milliseconds since the last lap, and record them in the trace under this name."""
        now, ended_ns = time.perf_counter(), time.time_ns()
        elapsed, self._last = now - self._last, now
        record_span(part, ended_ns - int(elapsed * 1e9), ended_ns)
        return elapsed * 1e3
