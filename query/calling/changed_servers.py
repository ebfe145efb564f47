"""Servers that announced, in the session of a call, that their tools have changed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import anyio.to_thread
import structlog

from shared.errors import ToolscaleError

EVERY_S = 5.0
"""Seconds between two requests for a server, however often it announces changes."""

_log = structlog.get_logger()


class ChangedServers:
    """Requests a reconciliation of each server that announces a change; the last change is never left out."""

    def __init__(self, request: Callable[[str], None], start: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        """`request` may block; `start` begins work in the background."""
        self._request, self._start = request, start
        self._announced: set[str] = set()
        self._waiting: set[str] = set()

    def add(self, server_id: str) -> None:
        """Request a reconciliation now, or, after a recent request, EVERY_S seconds after that."""
        self._announced.add(server_id)
        if server_id not in self._waiting:
            self._waiting.add(server_id)
            self._start(self._request_until_quiet(server_id))

    async def _request_until_quiet(self, server_id: str) -> None:
        try:
            while server_id in self._announced:
                self._announced.discard(server_id)
                await anyio.to_thread.run_sync(self._request, server_id)
                await anyio.sleep(EVERY_S)
        except ToolscaleError as error:  # a resync finds the change later
            _log.warning("change_not_requested", server=server_id, reason=str(error))
        finally:
            self._waiting.discard(server_id)
