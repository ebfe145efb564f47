"""The log of failures that repeat: a line for each kind and minute, with the number of those left out."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable

import structlog

from shared.errors import ToolscaleError
from shared.observability.line_limit import LineLimit


class FailureLog:
    """Logs failures under one event name. Safe to call from several threads.

    A store that is down fails each waiting task alike: the first line has the reason, and the next one follows after
    a minute, with `left_out`. An error of another kind has lines of its own.
    """

    def __init__(self, event: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._event = event
        self._lines: dict[type, LineLimit] = defaultdict(lambda: LineLimit(max_lines=1, clock_s=clock_s))
        self._lock = threading.Lock()

    def log(self, error: BaseException, **fields: object) -> None:
        """Log this error, with a traceback if it is none of ours, unless one of its kind was logged a minute ago."""
        with self._lock:
            left_out = self._lines[type(error)].admit()
        if left_out is None:
            return
        log = structlog.get_logger().bind(kind=type(error).__name__, reason=str(error), left_out=left_out, **fields)
        if isinstance(error, ToolscaleError):
            log.warning(self._event)
        else:
            log.error(self._event, exc_info=error)
