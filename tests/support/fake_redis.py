"""A Redis in this process, with Lua: for stores where no redis-server is installed."""

from __future__ import annotations

import redis
from fakeredis import FakeRedis, FakeServer


class FakeRedisServer:
    """Data that all clients of it share; it starts empty."""

    def __init__(self) -> None:
        # its server over TCP drops connections now and then, so clients reach it in the process
        self._server = FakeServer(version=(7, 2))
        # fakeredis may make two databases for clients that connect first at the same time, so one connects here
        self.client().ping()

    def client(self, *, decode_responses: bool = True) -> redis.Redis:
        """Return a client, as `connect` of a store does."""
        return FakeRedis(server=self._server, decode_responses=decode_responses)
