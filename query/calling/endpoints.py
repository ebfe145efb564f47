"""Endpoint resolution in its own threads, since a name server may be slow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from shared.catalog import Endpoint
from shared.upstream.target import Target

Dial = Callable[[str, Endpoint], Target]
"""Resolves a server's id and endpoint to an allowed target; blocks, and raises a ServerError."""

_MAX_THREADS = 16


class TargetResolver:
    """Resolves endpoints; concurrent calls of one server share a lookup, which outlives their cancellation.

    Only for the thread of its event loop.
    """

    def __init__(self, resolve_target: Dial) -> None:
        self._resolve_target = resolve_target
        self._threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="toolscale lookup")
        self._in_flight: dict[tuple[str, Endpoint], Future[Target]] = {}

    async def resolve(self, server_id: str, endpoint: Endpoint) -> Target:
        """Return the target to connect to.

        Raises:
            ServerError: from `Dial`.
        """
        key = server_id, endpoint
        lookup = self._in_flight.get(key)
        if lookup is None or lookup.done():
            lookup = self._in_flight[key] = self._threads.submit(self._resolve_target, server_id, endpoint)
        try:
            return await asyncio.shield(asyncio.wrap_future(lookup))
        finally:
            if lookup.done() and self._in_flight.get(key) is lookup:
                del self._in_flight[key]

    def close(self) -> None:
        """Cancel queued lookups, without waiting for running ones."""
        self._threads.shutdown(wait=False, cancel_futures=True)
