"""The HTTP answers of `toolscale serve` until its service is there."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

import uvicorn
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from query.caller import OPERATOR
from query.early import early_service
from query.endpoint import OwnHosts
from query.listener import MCP_PATH
from query.policy import ReadPolicy, no_policy
from query.streaming import body_message, readable_request, replayed
from shared.json_rpc import RequestRefused
from shared.service.http import HttpConfig
from shared.service.routes import application
from toolscale.embedded.door import Door, Use
from toolscale.stdio import TOOLSET_HEADER

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from query.early import Listed
    from query.listener import HttpListener
    from toolscale.client.instance import Instance

RETRY_AFTER_S = 1
# The early service answers these as the service will.
EARLY_METHODS = frozenset({"initialize", "notifications/initialized", "ping", "server/discover", "tools/list"})
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
# The handshake of a client is smaller.
_EARLY_BYTES = 64 << 10


class Startup:
    """The present step of the start, each also passed to `show`, and what the early list of tools needs."""

    def __init__(self, show: Callable[[str], None], read_policy: ReadPolicy = no_policy) -> None:
        self._show = show
        self.read_policy = read_policy
        self.doing = "starting"
        self.lists: list[Listed] = []
        """The lists of tools that were sent, for the service to record."""

    def begin(self, step: str) -> None:
        """Begin a step."""
        self.doing = step
        self._show(step)

    def response(self) -> JSONResponse:
        """Return 503 with the present step."""
        body = {"status": "starting", "doing": self.doing}
        return JSONResponse(body, status_code=503, headers={"Retry-After": str(RETRY_AFTER_S)})

    def page(self) -> Response:
        """Return a page with the present step, which the browser loads again until the service answers."""
        html = (
            '<!doctype html><html lang="en"><meta charset="utf-8">'
            f'<meta http-equiv="refresh" content="{RETRY_AFTER_S}">'
            f"<title>Toolscale</title><h1>Toolscale starts</h1><p>{self.doing} ...</p></html>"
        )
        headers = {"Retry-After": str(RETRY_AFTER_S), "Content-Security-Policy": "default-src 'none'"}
        return Response(html, 503, headers | {"Cache-Control": "no-store"}, "text/html")


@contextmanager
def answering(listener: HttpListener, startup: Startup, instance: Instance, use: Use) -> Generator[None]:
    """Answer on the listener until the block ends, as `starting_app` does."""
    app = Door(starting_app(listener, startup, instance.instance_id), instance.secret, use)
    server = uvicorn.Server(HttpConfig(app, grace_s=1))
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

    `/mcp` answers the handshake, and lists the built-in tools; with authentication, only for the operator. A client
    with a toolset waits for its list.
    """

    async def healthz(_: Request) -> JSONResponse:
        return JSONResponse({"status": "alive", "instance_id": instance_id, "starting": startup.doing})

    manager = StreamableHTTPSessionManager(
        early_service(startup.lists, startup.read_policy), stateless=True, json_response=True
    )

    @asynccontextmanager
    async def running(_: Starlette) -> AsyncGenerator[None]:
        async with manager.run():
            yield

    async def unavailable(request: Request) -> Response:
        is_page = request.method == "GET" and request.url.path.strip("/").partition("/")[0] in ("", "ui")
        return startup.page() if is_page else startup.response()

    early = _EarlyAnswers(StreamableHTTPASGIApp(manager), startup, listener)
    mcp, rest = Route(MCP_PATH, early, methods=["POST"]), Route("/{path:path}", unavailable, methods=_METHODS)
    return application([Route("/healthz", healthz), mcp, rest], running)


class _EarlyAnswers:
    """ASGI: passes the handshake and the list of tools to `early`, and answers 503 to all else."""

    def __init__(self, early: ASGIApp, startup: Startup, listener: HttpListener) -> None:
        self._early, self._startup, self._is_open = early, startup, listener.authentication is None
        self._hosts = OwnHosts(listener)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the request's body, and pass it on unchanged."""
        message = await body_message(receive)
        if message["type"] != "http.request":  # the client has left
            return
        body, method = message["body"], None
        is_known = self._is_open or OPERATOR in scope
        if is_known and len(body) <= _EARLY_BYTES:
            with suppress(RequestRefused):  # by the service, once it is there
                request, body = readable_request(body)
                method = request.get("method")
        message = {**message, "body": body}
        is_early = method in EARLY_METHODS and not (method == "tools/list" and TOOLSET_HEADER in Headers(scope=scope))
        answer = self._hosts.refusal(Headers(scope=scope)) or (self._early if is_early else self._startup.response())
        await answer(scope, replayed(message, receive), send)
