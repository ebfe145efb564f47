"""The query service over HTTP, by uvicorn; at its end, calls that outlast their grace get an error."""

from __future__ import annotations

import gc
import signal
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import anyio
import structlog
import uvicorn
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp.types import INTERNAL_ERROR, SubscriptionsListenResult
from sse_starlette.sse import AppStatus
from typing_extensions import override

from query.app import NO_CHECKS, Checks, http_app
from query.listener import MCP_PATH
from query.listening import LISTEN
from shared.service.http import HttpConfig

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence
    from types import FrameType

    from mcp.server import Server
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from starlette.routing import Route
    from starlette.types import ASGIApp

    from query.listener import HttpListener
    from shared.index.tools import ToolIndex
    from shared.settings import Settings
    from shared.upstream.followed_config import FollowedConfig

# A search of many steps holds the interpreter; short searches beside it acquire it several times.
SWITCH_INTERVAL_S = 0.0005

INTERRUPT_GRACE_S = 5.0
"""Seconds that requests in flight have after Ctrl-C."""
RESPONSE_S = 5
"""Seconds for the responses after the last call: the margin of the grace, and of uvicorn's limit."""
CUT_OFF = "The service stopped before this request ended. A call of a tool may have been carried out or not."

_log = structlog.get_logger()


def grace_s_of(settings: Settings) -> float:
    """Return the seconds that requests in flight have after SIGTERM: the longest call, and time for its response."""
    return settings.call_timeout_s + RESPONSE_S


class HttpServer:
    """The query service on its listener, served by uvicorn."""

    def __init__(
        self,
        server: Server[Any],
        listener: HttpListener,
        *,
        index: ToolIndex,
        routes: Sequence[Route] = (),
        checks: Checks = NO_CHECKS,
        followed_config: Callable[[], FollowedConfig | None] = lambda: None,
        instance_id: str | None = None,
        grace_s: float = INTERRUPT_GRACE_S,
        door: Callable[[ASGIApp], ASGIApp] = lambda app: app,
    ) -> None:
        """Prepare to serve; `routes` and `checks` extend those of the query service, and all requests pass the `door`.

        At the end, requests in flight have `grace_s` seconds; then they get a JSON-RPC error, from a middleware that
        this adds to `server`.
        """
        self._listener = listener
        app = http_app(
            server,
            listener,
            index=index,
            routes=routes,
            checks=checks,
            followed_config=followed_config,
            instance_id=instance_id,
        )
        self._uvicorn = _GracefulServer(HttpConfig(door(app)), grace_s)
        server.middleware.append(self._uvicorn.answered)

    @property
    def url(self) -> str:
        """Return the address MCP clients connect to."""
        return self._listener.address + MCP_PATH

    @property
    def is_ending(self) -> bool:
        """Return whether a signal or `stop` has ended the service."""
        return self._uvicorn.should_exit

    def run(self) -> None:
        """Serve until `stop`; in the main thread also until SIGINT or SIGTERM, which is raised again afterwards."""
        _log.info("query_service_started", url=self.url, authenticated=self._listener.authentication is not None)
        try:
            with closing(self._listener):
                self._uvicorn.run(sockets=[self._listener.server_socket])
        finally:
            _log.info("query_service_stopped")

    def stop(self) -> None:
        """Let `run` end once the requests in flight are answered. Safe to call from any thread."""
        self._uvicorn.should_exit = True


def tune_interpreter() -> None:
    """Let this process answer short requests soon: threads change more often, and objects so far are never collected.

    Once, after the start; it concerns all threads.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.freeze()  # a collection of all objects that the start made delays every request by 100 ms


class _GracefulServer(uvicorn.Server):
    """Uvicorn, which takes no connection after a signal and waits for the responses in flight.

    Requests that last longer than `grace_s` seconds get an error. SIGINT shortens the grace, and a second SIGINT ends
    the server at once.
    """

    def __init__(self, config: uvicorn.Config, grace_s: float) -> None:
        super().__init__(config)
        self._in_flight: set[anyio.CancelScope] = set()
        self._listening: set[anyio.CancelScope] = set()
        self._set_grace(grace_s)
        # else the streams of calls end with the signal
        AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]  # the package has no type for it

    async def answered(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Return the result of an MCP request: a middleware of the SDK's server.

        A client that listens gets its result as the service ends.

        Raises:
            MCPError: the grace ended first.
        """
        scope = anyio.CancelScope()
        scopes = self._listening if ctx.method == LISTEN else self._in_flight
        scopes.add(scope)
        try:
            with scope:
                return await call_next(ctx)
        finally:
            scopes.discard(scope)
        if scopes is self._listening:
            return SubscriptionsListenResult(_meta={SUBSCRIPTION_ID_META_KEY: ctx.request_id})
        raise MCPError(INTERNAL_ERROR, CUT_OFF)

    @override
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGINT:
            self._set_grace(min(self._grace_s, INTERRUPT_GRACE_S))
        super().handle_exit(sig, frame)

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for scope in tuple(self._listening):
            scope.cancel()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._cut_off)
            await super().shutdown(sockets)
            tasks.cancel_scope.cancel()

    async def _cut_off(self) -> None:
        """Cancel the requests that are in flight after the grace."""
        await anyio.sleep(self._grace_s)
        _log.warning("calls_cut_off", requests=len(self._in_flight), grace_s=self._grace_s)
        for scope in tuple(self._in_flight):
            scope.cancel()

    def _set_grace(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self.config.timeout_graceful_shutdown = round(grace_s + RESPONSE_S)
