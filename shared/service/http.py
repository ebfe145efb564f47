"""HTTP servers: uvicorn, with limits on the connections of an address, on silence, and on bodies.

With them no client takes the files or the memory of a process, nor all connections. A reverse proxy in front limits
how slowly clients send and read, and how often (docs/security.md).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import sys
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

import structlog
import uvicorn
from starlette.exceptions import HTTPException
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

from shared.errors import ConfigInvalid
from shared.service.logging import LineLimit
from shared.service.process import caller_connections

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_WITHIN_S = 10.0
"""Seconds to the head of a connection's first request, and from a response to that of the next."""
BODY_WITHIN_S = 30.0
"""Seconds to the end of a body."""
READ_WITHIN_S = 30.0
"""Seconds in which a client reads some bytes of a response that waits for it."""
BODIES_BYTES = 64 << 20
"""Bytes of bodies in a process, until their responses; parsed, they take several times as many."""
SMALL_BYTES = 64 << 10
"""A body of this size always passes: the limit on connections bounds their sum."""

_IPV6_SUBSCRIBER = 64  # bits: a host has all addresses of such a network
_CONNECTION = "toolscale_connection"

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits of an HTTP server."""

    connections: int = field(default_factory=caller_connections)
    request_within_s: float = REQUEST_WITHIN_S
    body_within_s: float = BODY_WITHIN_S
    bodies_bytes: int = BODIES_BYTES


class HttpConfig(uvicorn.Config):
    """The configuration of uvicorn for an application, with the limits."""

    def __init__(self, app: ASGIApp, limits: HttpLimits | None = None, *, grace_s: int | None = None) -> None:
        """At the end, the responses in flight have `grace_s` seconds, or as long as they need."""
        limits = limits or HttpLimits()
        self.connections = Connections(limits.connections, limits.request_within_s)
        # logging is configured by the process; each request has its own line already
        super().__init__(
            _Limited(app, limits, self.connections),
            http=_Protocol,
            ws="none",
            loop="asyncio",
            log_config=None,
            access_log=False,
            # asyncio accepts as many at a time: more would take files before the limit closes any connection
            backlog=1,
            # longer than clients keep an idle connection (httpx: 5 s), else some send a request while it is closed
            timeout_keep_alive=int(REQUEST_WITHIN_S),
            timeout_graceful_shutdown=grace_s,
        )


@dataclass(eq=False, slots=True)
class Connection:
    """A client's connection, which is idle without `requests` in flight."""

    transport: asyncio.Transport
    address: str
    requests: int = 0  # a pipelined one may begin before the last one has ended


class Connections:
    """The open connections, at most `limit`; for a new one, the address with the most loses an idle one.

    All methods run in one event loop.
    """

    def __init__(self, limit: int, request_within_s: float = REQUEST_WITHIN_S) -> None:
        self._limit = limit
        self._request_within_s = request_within_s
        self._open: dict[Connection, None] = {}  # the newest last
        # the one that was idle for the longest time first, each with the timer that closes it
        self._idle: dict[Connection, asyncio.TimerHandle] = {}
        self._sizes: Counter[str] = Counter()
        self._lines = LineLimit(max_lines=1)

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._open

    def add(self, transport: asyncio.Transport) -> Connection:
        """Return a new connection, which is idle; above the limit, close one, which may be the new one."""
        host, *_ = transport.get_extra_info("peername") or ("",)
        connection = Connection(transport, address_of(host))
        self._open[connection] = None
        self._sizes[connection.address] += 1
        self._start_timer(connection)
        if len(self) > self._limit:
            self._close_one()
        return connection

    def remove(self, connection: Connection) -> None:
        """Remove a connection, if it is still there."""
        if connection not in self:
            return
        del self._open[connection]
        self._sizes[connection.address] -= 1
        if not self._sizes[connection.address]:
            del self._sizes[connection.address]
        self._stop_timer(connection)

    def begin_request(self, connection: Connection) -> None:
        """Note a request in flight."""
        connection.requests += 1
        self._stop_timer(connection)

    def end_request(self, connection: Connection) -> None:
        """Note the end of a request; the connection may have been closed before."""
        connection.requests -= 1
        if not connection.requests and connection in self:
            self._start_timer(connection)

    def _start_timer(self, connection: Connection) -> None:
        # the client may still read a response, which `close` sends to its end
        close = connection.transport.close
        self._idle[connection] = asyncio.get_running_loop().call_later(self._request_within_s, close)

    def _stop_timer(self, connection: Connection) -> None:
        if timer := self._idle.pop(connection, None):
            timer.cancel()

    def _close_one(self) -> None:
        """Close the connection of the address with the most that was idle for the longest time, else its newest."""
        most = max(self._sizes.values())
        # the new connection is idle: only an address with more than the new one's loses a request in flight
        closed = next(each for each in chain(self._idle, reversed(self._open)) if self._sizes[each.address] == most)
        left_out = self._lines.admit()
        if left_out is not None:
            _log.warning("connection_limit_reached", limit=self._limit, client=closed.address, left_out=left_out)
        self.remove(closed)
        closed.transport.abort()


def address_of(host: str) -> str:
    """Return the address that counts for a client: of IPv6 its network."""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host)
    return str(address.ipv4_mapped or ipaddress.IPv6Network((int(address), _IPV6_SUBSCRIBER), strict=False))


class _Protocol(H11Protocol):
    """Uvicorn's connection, which is counted; its applications find it in the `state` of their scope."""

    config: HttpConfig

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._connection = self.config.connections.add(transport)
        self.app_state = {**self.app_state, _CONNECTION: self._connection}

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.config.connections.remove(self._connection)
        super().connection_lost(exc)


class _Limited:
    """ASGI: an application whose `receive` raises HTTPException for a body that is too slow or exceeds the budget.

    The bytes of a body count until the request is answered: the application holds them, or the parsed values.
    """

    def __init__(self, app: ASGIApp, limits: HttpLimits, connections: Connections) -> None:
        self._app = app
        self._limits = limits
        self._connections = connections
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        size_bytes = 0
        is_complete = False
        deadline_s = asyncio.get_running_loop().time() + self._limits.body_within_s

        async def receive_within_limits() -> Message:
            nonlocal size_bytes, is_complete
            if is_complete:
                return await receive()  # returns when the client disconnects
            try:
                async with asyncio.timeout_at(deadline_s):
                    message = await receive()
            except TimeoutError as error:
                reason = f"expected the body within {self._limits.body_within_s:g} s"
                raise HTTPException(408, reason, {"Connection": "close"}) from error
            is_complete = not message.get("more_body", False)
            received_bytes = len(message.get("body", b""))
            size_bytes += received_bytes
            self._held_bytes += received_bytes
            if size_bytes > SMALL_BYTES and self._held_bytes > self._limits.bodies_bytes:
                raise HTTPException(
                    503, "too many large requests are in progress; send this one again", {"Retry-After": "1"}
                )
            return message

        connection: Connection = scope["state"][_CONNECTION]
        self._connections.begin_request(connection)
        try:
            await self._app(scope, receive_within_limits, send)
        finally:
            self._held_bytes -= size_bytes
            self._connections.end_request(connection)


def bind(host: str, port: int, settings: str) -> socket.socket:
    """Return a socket that listens at this address; `settings` names its settings in an error message.

    Raises:
        ConfigInvalid: the address cannot be bound.
    """
    try:
        server = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigInvalid(f"settings {settings}: cannot listen on {host}:{port}: {error.strerror}") from error
    listener = _Listener(server.family, server.type, server.proto, fileno=server.detach())
    # connections inherit both; without NODELAY the end of each response waits 40 ms for an acknowledgement
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sys.platform == "linux":
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(READ_WITHIN_S * 1000))
    return listener


class _Listener(socket.socket):
    """A listening socket with a long queue, although uvicorn passes a backlog of one on to it."""

    @override
    def listen(self, backlog: int = socket.SOMAXCONN, /) -> None:
        super().listen(socket.SOMAXCONN)
