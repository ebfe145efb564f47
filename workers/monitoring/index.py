"""A warning at the start of a process that Qdrant does not answer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import structlog

from shared.index import unreachable_reason

if TYPE_CHECKING:
    from shared.settings import Settings


def warn_if_index_unreachable(settings: Settings) -> threading.Thread:
    """Check QDRANT_URL in a thread, and log a warning if no server answers there; return the thread."""
    thread = threading.Thread(target=_warn, args=(settings.qdrant_url,), name="index check", daemon=True)
    thread.start()
    return thread


def _warn(url: str | None) -> None:
    if url and (reason := unreachable_reason(url)):
        structlog.get_logger().warning("index_unreachable", reason=reason)
