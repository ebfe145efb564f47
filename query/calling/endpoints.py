"""Where servers are: looked up in threads of their own, since a name server may take long to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from shared.catalog import Endpoint
from shared.upstream.dial import Target

Dial = Callable[[str, Endpoint], Target]
"""Turns a server's id and endpoint into what may be connected to; blocks, and raises a ServerError."""

_MAX_THREADS = 16


class TargetResolver:
    """Looks endpoints up, one lookup for all who ask for a server at the same time.

    Who is cancelled leaves a lookup to itself. Not safe for other threads than that of its event loop.
    """

    def __init__(self, resolve_target: Dial) -> None:
        self._resolve_target = resolve_target
        self._threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="toolscale lookup")
        self._under_way: dict[tuple[str, Endpoint], Future[Target]] = {}

    async def resolve(self, server_id: str, endpoint: Endpoint) -> Target:
        """Return what may be connected to.

        Raises:
            ServerError: as `Dial` does.
        """
        key = server_id, endpoint
        lookup = self._under_way.get(key)
        if lookup is None or lookup.done():
            lookup = self._under_way[key] = self._threads.submit(self._resolve_target, server_id, endpoint)
        try:
            return await asyncio.shield(asyncio.wrap_future(lookup))
        finally:
            if lookup.done() and self._under_way.get(key) is lookup:
                del self._under_way[key]

    def close(self) -> None:
        """Begin no more lookups; nobody waits for those under way."""
        self._threads.shutdown(wait=False, cancel_futures=True)
