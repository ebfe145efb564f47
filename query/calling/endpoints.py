"""Where servers are: looked up in threads of their own, since a name server may take long to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from shared.catalog import Endpoint
from shared.upstream.dial import Target

Dial = Callable[[str, Endpoint], Target]
"""Turns a server's id and endpoint into what may be connected to; blocks, and raises a ServerError."""

_AT_ONCE = 16


class Lookups:
    """Looks endpoints up, one lookup for all who ask for a server at the same time.

    Who is cancelled leaves a lookup to itself. Not safe for other threads than that of its event loop.
    """

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="toolscale lookup")
        self._under_way: dict[tuple[str, Endpoint], Future[Target]] = {}

    async def target(self, server_id: str, endpoint: Endpoint) -> Target:
        """Return what may be connected to.

        Raises:
            ServerError: as `Dial` does.
        """
        asked = server_id, endpoint
        lookup = self._under_way.get(asked)
        if lookup is None or lookup.done():
            lookup = self._under_way[asked] = self._threads.submit(self._dial, server_id, endpoint)
        try:
            return await asyncio.shield(asyncio.wrap_future(lookup))
        finally:
            if lookup.done() and self._under_way.get(asked) is lookup:
                del self._under_way[asked]

    def close(self) -> None:
        """Begin no more lookups; nobody waits for those under way."""
        self._threads.shutdown(wait=False, cancel_futures=True)
