"""Logs on stderr, in one format for Toolscale and libraries, since stdout may transport MCP; repeated lines are few."""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable

import structlog
from structlog.types import Processor

from shared.errors import ConfigInvalid, ToolscaleError

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

# The lowest level of a library's lines, even if the configured level is lower.
LIBRARIES: dict[str, int] = {
    # they log whole URLs, which may contain secrets
    "httpx": logging.WARNING,
    "httpcore": logging.WARNING,
    "httpx2": logging.WARNING,
    "httpcore2": logging.WARNING,
    "urllib3": logging.WARNING,
    # it logs the headers of the environment that it cannot read, which may hold a token
    "opentelemetry.util.re": logging.ERROR,
    # it logs each invalid request of a client without a token
    "uvicorn": logging.ERROR,
    # it logs each start, stop and request, which Toolscale logs too
    "mcp": logging.WARNING,
    # it logs a traceback with the input for each invalid message; Toolscale logs the error in one line
    "mcp.client": logging.CRITICAL,
    # they log each message and each tick; a reconciliation and a sweep that did something log a line of their own
    "celery.beat": logging.WARNING,
    "celery.worker.strategy": logging.WARNING,
    # it logs a traceback for each failed task; Toolscale logs a line for each kind of failure
    "celery.app.trace": logging.CRITICAL,
}

# Of the lines that clients can cause.
MAX_LINES = 10
PER_S = 60.0


def configure_logging(level: str) -> None:
    """Send every log line of this process to stderr, as JSON, or as plain text if stderr is a terminal.

    A second call replaces the level and the stream.

    Raises:
        ConfigInvalid: the level is not in LEVELS, ignoring case.
    """
    if level.upper() not in LEVELS:
        raise ConfigInvalid(f"setting log_level: expected one of {', '.join(LEVELS)}, got {level!r}")
    handler = logging.StreamHandler(sys.stderr)
    # no local variables in tracebacks, since they may contain credentials
    renderers: list[Processor] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    if sys.stderr and sys.stderr.isatty():  # None: the caller closed it
        renderers = [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_stamps(),
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name, least in LIBRARIES.items():
        logging.getLogger(name).setLevel(max(least, root.level))
    to_handler = structlog.stdlib.ProcessorFormatter.wrap_for_formatter
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *_stamps(), to_handler],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


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


def _stamps() -> list[Processor]:
    """Return the processors for every line, also those of libraries."""
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
