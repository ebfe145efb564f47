"""Refused callers in the log, without their tokens, and no more lines than someone can read."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import structlog

LINES = 10
PER_S = 60.0

_log = structlog.get_logger()


class Refusals:
    """At most LINES in PER_S seconds, whoever knocks; the next line says how many were left out."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._began_at_s = -math.inf
        self._written = self._left_out = 0

    def note(self, reason: str, client: str | None) -> None:
        """Write that a caller at this address was refused, or count it."""
        now_s = self._clock_s()
        if now_s - self._began_at_s >= PER_S:
            self._began_at_s, self._written = now_s, 0
        if self._written >= LINES:
            self._left_out += 1
            return
        _log.warning("caller_refused", reason=reason, client=client, left_out=self._left_out)
        self._written += 1
        self._left_out = 0
