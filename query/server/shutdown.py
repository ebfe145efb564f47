"""The end of the HTTP service: calls in flight end first, and calls that outlast the grace get an error."""

from __future__ import annotations

import math
import signal
from typing import TYPE_CHECKING, Any

import anyio
import structlog
import uvicorn
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR
from sse_starlette.sse import AppStatus
from starlette.datastructures import MutableHeaders
from typing_extensions import override

if TYPE_CHECKING:
    import socket
    from types import FrameType

    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from shared.settings import Settings

INTERRUPT_GRACE_S = 5.0
"""Seconds that requests in flight have after Ctrl-C."""
RESPONSE_S = 5
"""Seconds for the responses after the last call: the margin of the grace, and uvicorn's limit for connections."""
CUT_OFF = "The service stopped before this request ended. A call of a tool may have been carried out or not."
NOT_BEGUN = "The service stops. Send the request again."

# A client sends its next request within this time, for example the list of tools after a call.
_QUIET_S = 0.3
_POLL_S = 0.05
_log = structlog.get_logger()


def grace_s_of(settings: Settings) -> float:
    """Return the seconds that requests in flight have after SIGTERM: the longest call, and time for its response."""
    return settings.call_timeout_s + RESPONSE_S


class Drain:
    """The POST requests in flight. All methods run in the event loop of the service.

    The service answers all requests until none is in flight. Its responses then close their connections, so that a
    client connects to another replica.
    """

    def __init__(self) -> None:
        self.has_begun = False
        self._is_over = False
        self._in_flight = 0
        self._ended_at = -math.inf
        self._scopes: set[anyio.CancelScope] = set()

    def counted(self, app: ASGIApp) -> ASGIApp:
        """Return the application, with its requests counted."""

        async def count(scope: Scope, receive: Receive, send: Send) -> None:
            is_counted = scope["type"] == "http" and scope["method"] == "POST"
            self._in_flight += is_counted
            try:
                await app(scope, receive, self._closing(send))
            finally:
                if is_counted:
                    self._in_flight -= 1
                    self._ended_at = anyio.current_time()

        return count

    def _closing(self, send: Send) -> Send:
        async def send_with_header(message: Message) -> None:
            if self.has_begun and message["type"] == "http.response.start":
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        return send_with_header

    async def answered(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Return the result of an MCP request: a middleware of the SDK's server.

        Raises:
            MCPError: the grace ended first, or before the request.
        """
        if self._is_over:
            raise MCPError(INTERNAL_ERROR, NOT_BEGUN)
        scope = anyio.CancelScope()
        self._scopes.add(scope)
        try:
            with scope:
                return await call_next(ctx)
        finally:
            self._scopes.discard(scope)
        raise MCPError(INTERNAL_ERROR, CUT_OFF)

    async def wait(self, server: DrainedServer) -> None:
        """Wait until no request is in flight; at the end of the server's grace, cancel the rest."""
        self.has_begun = True
        with anyio.move_on_after(server.grace_s) as grace:
            while self._is_busy() and not server.force_exit:  # noqa: ASYNC110  # a signal handler sets `force_exit`
                await anyio.sleep(_POLL_S)
        self._is_over = True
        if grace.cancelled_caught:
            _log.warning("calls_cut_off", requests=len(self._scopes), grace_s=server.grace_s)
        for scope in tuple(self._scopes):
            scope.cancel()

    def _is_busy(self) -> bool:
        return self._in_flight > 0 or anyio.current_time() - self._ended_at < _QUIET_S


class DrainedServer(uvicorn.Server):
    """Uvicorn, which closes its socket when no request is in flight, at the latest after `grace_s` seconds.

    SIGINT shortens the grace, and a second SIGINT ends the server at once.
    """

    def __init__(self, config: uvicorn.Config, drain: Drain, grace_s: float) -> None:
        super().__init__(config)
        self.grace_s = grace_s
        self._drain = drain
        # else the streams of calls end with the signal
        AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]  # the package has no type for it

    @override
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGINT:
            self.grace_s = min(self.grace_s, INTERRUPT_GRACE_S)
        super().handle_exit(sig, frame)

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._drain.wait(self)
        await super().shutdown(sockets)
