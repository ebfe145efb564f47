"""The HTTP answers of `toolscale serve` until its service is there."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import uvicorn
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from query.app import MCP_PATH
from query.endpoint import security_of
from query.server.early import early_service
from query.streaming import body_message, replayed
from shared.service.http import HttpConfig

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from query.listener import HttpListener

RETRY_AFTER_S = 1
# The early service answers these as the service will.
EARLY_METHODS = frozenset({"initialize", "notifications/initialized", "ping", "server/discover", "tools/list"})
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
# The handshake of a client is smaller.
_EARLY_BYTES = 64 << 10


class Startup:
    """The present step of the start; each is also passed to `show`."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self.doing = "starting"

    def begin(self, step: str) -> None:
        """Begin a step."""
        self.doing = step
        self._show(step)


@contextmanager
def answering(listener: HttpListener, startup: Startup, instance_id: str) -> Generator[None]:
    """Answer on the listener until the block ends, as `starting_app` does."""
    server = uvicorn.Server(HttpConfig(starting_app(listener, startup, instance_id), grace_s=1))
    # uvicorn closes the socket that it gets; connections after its end wait for the service
    sockets = [listener.server_socket.dup()]
    thread = threading.Thread(target=server.run, args=(sockets,), name="toolscale starting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


def starting_app(listener: HttpListener, startup: Startup, instance_id: str) -> Starlette:
    """Return the application: `/healthz`, with the instance id and the step, and 503 for every other request.

    Without authentication, `/mcp` answers the handshake and lists the built-in tools.
    """

    async def healthz(_: Request) -> JSONResponse:
        return JSONResponse({"status": "alive", "instance_id": instance_id, "starting": startup.doing})

    manager = StreamableHTTPSessionManager(
        early_service(), stateless=True, json_response=True, security_settings=security_of(listener)
    )

    @asynccontextmanager
    async def running(_: Starlette) -> AsyncGenerator[None]:
        async with manager.run():
            yield

    unavailable = _Unavailable(startup)
    early = _EarlyAnswers(StreamableHTTPASGIApp(manager), unavailable)
    mcp = [] if listener.authentication else [Route(MCP_PATH, early, methods=["POST"])]
    rest = Route("/{path:path}", unavailable, methods=_METHODS)
    return Starlette(routes=[Route("/healthz", healthz), *mcp, rest], lifespan=running)


class _Unavailable:
    """ASGI: answers 503 with the present step."""

    def __init__(self, startup: Startup) -> None:
        self._startup = startup

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        body = {"status": "starting", "doing": self._startup.doing}
        response = JSONResponse(body, status_code=503, headers={"Retry-After": str(RETRY_AFTER_S)})
        await response(scope, receive, send)


class _EarlyAnswers:
    """ASGI: passes the methods EARLY_METHODS to `early`, and all else to `unavailable`."""

    def __init__(self, early: ASGIApp, unavailable: ASGIApp) -> None:
        self._early = early
        self._unavailable = unavailable

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the request's body, and pass it on unchanged."""
        message = await body_message(receive)
        if message["type"] == "http.request":  # else the client has left
            app = self._early if _is_early(message["body"]) else self._unavailable
            await app(scope, replayed(message, receive), send)


def _is_early(body: bytes) -> bool:
    try:
        return len(body) <= _EARLY_BYTES and json.loads(body)["method"] in EARLY_METHODS
    except (ValueError, RecursionError, LookupError, TypeError):
        return False
