"""The end of the HTTP service: uvicorn's own, with an error for the calls that outlast their grace."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import anyio
import structlog
import uvicorn
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR
from sse_starlette.sse import AppStatus
from typing_extensions import override

if TYPE_CHECKING:
    import socket
    from types import FrameType

    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

    from shared.settings import Settings

INTERRUPT_GRACE_S = 5.0
"""Seconds that requests in flight have after Ctrl-C."""
RESPONSE_S = 5
"""Seconds for the responses after the last call: the margin of the grace, and of uvicorn's limit."""
CUT_OFF = "The service stopped before this request ended. A call of a tool may have been carried out or not."

_log = structlog.get_logger()


def grace_s_of(settings: Settings) -> float:
    """Return the seconds that requests in flight have after SIGTERM: the longest call, and time for its response."""
    return settings.call_timeout_s + RESPONSE_S


class InFlight:
    """The MCP requests in flight. All methods run in the event loop of the service."""

    def __init__(self) -> None:
        self._scopes: set[anyio.CancelScope] = set()

    async def answered(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Return the result of a request: a middleware of the SDK's server.

        Raises:
            MCPError: `cut_off` came first.
        """
        scope = anyio.CancelScope()
        self._scopes.add(scope)
        try:
            with scope:
                return await call_next(ctx)
        finally:
            self._scopes.discard(scope)
        raise MCPError(INTERNAL_ERROR, CUT_OFF)

    async def cut_off(self, grace_s: float) -> None:
        """Cancel the requests that are in flight after `grace_s` seconds."""
        await anyio.sleep(grace_s)
        _log.warning("calls_cut_off", requests=len(self._scopes), grace_s=grace_s)
        for scope in tuple(self._scopes):
            scope.cancel()


class GracefulServer(uvicorn.Server):
    """Uvicorn, which takes no connection after a signal and waits for the responses in flight.

    Requests that last longer than `grace_s` seconds get an error. SIGINT shortens the grace, and a second SIGINT ends
    the server at once.
    """

    def __init__(self, config: uvicorn.Config, in_flight: InFlight, grace_s: float) -> None:
        super().__init__(config)
        self._in_flight = in_flight
        self._set_grace(grace_s)
        # else the streams of calls end with the signal
        AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]  # the package has no type for it

    @override
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGINT:
            self._set_grace(min(self._grace_s, INTERRUPT_GRACE_S))
        super().handle_exit(sig, frame)

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._in_flight.cut_off, self._grace_s)
            await super().shutdown(sockets)
            tasks.cancel_scope.cancel()

    def _set_grace(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self.config.timeout_graceful_shutdown = round(grace_s + RESPONSE_S)
