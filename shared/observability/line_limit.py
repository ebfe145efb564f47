"""A limit on the log lines that clients can cause."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

MAX_LINES = 10
PER_S = 60.0


class LineLimit:
    """Admits at most `max_lines` in PER_S seconds, and counts the others."""

    def __init__(self, max_lines: int = MAX_LINES, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._max_lines = max_lines
        self._clock_s = clock_s
        self._began_at_s = -math.inf
        self._written = self._left_out = 0

    def admit(self) -> int | None:
        """Return the number of lines left out since the last one; None if this line is left out too."""
        now_s = self._clock_s()
        if now_s - self._began_at_s >= PER_S:
            self._began_at_s, self._written = now_s, 0
        if self._written >= self._max_lines:
            self._left_out += 1
            return None
        self._written += 1
        left_out, self._left_out = self._left_out, 0
        return left_out
