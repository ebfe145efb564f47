"""Logs on stderr, in one format for Toolscale and libraries; stdout may transport MCP."""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.types import Processor

from shared.errors import ConfigInvalid

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

# The lowest level of a library's lines, even if the configured level is lower.
LIBRARIES: dict[str, int] = {
    # they log whole URLs, which may contain secrets
    "httpx": logging.WARNING,
    "httpcore": logging.WARNING,
    "httpx2": logging.WARNING,
    "httpcore2": logging.WARNING,
    "urllib3": logging.WARNING,
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


def configure_logging(level: str) -> None:
    """Send every log line of this process to stderr, as JSON, or as plain text if stderr is a terminal.

    A second call replaces the level and the stream.

    Raises:
        ConfigInvalid: the level is not in LEVELS, ignoring case.
    """
    if level.upper() not in LEVELS:
        raise ConfigInvalid(f"setting log_level: expected one of {', '.join(LEVELS)}, got {level!r}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(readable=sys.stderr.isatty()))
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


def _stamps() -> list[Processor]:
    """Return the processors for every line, also those of libraries."""
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _formatter(*, readable: bool) -> structlog.stdlib.ProcessorFormatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_stamps(),
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(readable=readable)],
    )


def _renderers(*, readable: bool) -> list[Processor]:
    # no local variables in tracebacks, since they may contain credentials
    if readable:
        return [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
