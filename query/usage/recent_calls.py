"""The calls of each caller in the last days, by tool, read from the usage every few minutes."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta

import structlog

from query.usage.usage import Usage, today
from shared.errors import HistoryUnavailable

DAYS = 30
REFRESH_S = 300.0
# Answers wait at most so long for the first read of a process, and for no later read.
FIRST_READ_S = 1.0
CLOSE_S = 5.0

CallCounts = frozenset[tuple[str, int]]
"""Calls by the qualified name of their tool; hashable, since caches have it in their keys."""
NO_CALLS: CallCounts = frozenset()

_log = structlog.get_logger()


class RecentCalls:
    """The calls of each caller in the last DAYS days; a thread reads them again once they are REFRESH_S seconds old.

    A read starts with an answer that needs the calls. While the store does not answer, the last counts stay.
    """

    def __init__(self, usage: Usage, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._usage, self._clock_s = usage, clock_s
        self._lock, self._has_read = threading.Lock(), threading.Event()
        self._due_at_s = -math.inf
        self._thread: threading.Thread | None = None
        self._is_failing = False
        self._by_caller: Mapping[str, CallCounts] = {}

    def of(self, caller: str) -> CallCounts:
        """Return the calls of this caller; none before the first read. Never raises."""
        with self._lock:
            if self._clock_s() >= self._due_at_s:
                self._due_at_s = math.inf  # until this read ends
                self._thread = threading.Thread(target=self._read, name="toolscale calls", daemon=True)
                self._thread.start()
        if not self._has_read.wait(FIRST_READ_S):
            self._has_read.set()  # a store that hangs delays no further answer
        return self._by_caller.get(caller, NO_CALLS)

    def close(self) -> None:
        """Wait for a read in progress, at most CLOSE_S seconds."""
        if self._thread:
            self._thread.join(CLOSE_S)

    def _read(self) -> None:
        last = today()
        try:
            counts: dict[str, set[tuple[str, int]]] = {}
            sums = self._usage.sums(last - timedelta(days=DAYS - 1), last, ("calls",))
            for (caller, server, tool), of_tool in sums.items():
                counts.setdefault(caller, set()).add((f"{server}:{tool}", of_tool["calls"]))
            self._by_caller = {caller: frozenset(calls) for caller, calls in counts.items()}
            self._is_failing = False
        except HistoryUnavailable as error:
            if not self._is_failing:
                _log.warning("recent_calls_not_read", reason=str(error))
            self._is_failing = True
        finally:
            self._due_at_s = self._clock_s() + REFRESH_S
            self._has_read.set()
