"""The query service over streamable HTTP: routes, host checks, and a server that can be stopped."""

from __future__ import annotations

import gc
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import anyio
import structlog
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from query.auth.http import guarded, metadata_routes
from query.server.shutdown import INTERRUPT_GRACE_S, GracefulServer, InFlight
from query.server.streaming import CallsStreamed
from query.server.toolsets_route import ExistingToolsets, toolset_routes
from shared.errors import IndexUnavailable
from shared.service.http import HttpConfig
from shared.service.routes import liveness_route

if TYPE_CHECKING:
    from mcp.server import Server
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from query.server.listener import HttpListener
    from shared.index.tools import ToolIndex
    from shared.upstream.followed_config import FollowedConfig

MCP_PATH = "/mcp"
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")

# A search of many steps holds the interpreter; short searches beside it acquire it several times.
SWITCH_INTERVAL_S = 0.0005

# Further readiness checks by name: each returns the problem as text, or None, without waiting.
Checks = Mapping[str, Callable[[], str | None]]
NO_CHECKS: Checks = MappingProxyType({})

_log = structlog.get_logger()


def http_app(
    server: Server[Any],
    listener: HttpListener,
    *,
    index: ToolIndex,
    routes: Sequence[Route] = (),
    checks: Checks = NO_CHECKS,
    followed_config: Callable[[], FollowedConfig | None] = lambda: None,
    instance_id: str | None = None,
    in_flight: InFlight | None = None,
) -> Starlette:
    """Return `/mcp`, stateless, so that any replica answers any request, with `/healthz`, `/readyz` and `routes`.

    `/mcp/{toolset}` is the same with this toolset, and `/toolsets` writes toolsets. These routes authenticate callers;
    every other route does so itself.
    Responses are plain JSON without a size limit: clients reject more than 1 MiB in an event stream.
    Only calls return a stream. `/readyz` succeeds while the index answers and no check returns a problem.
    Its response has the state of `followed_config`; with authentication, without paths and names of servers.
    `/healthz` has the instance id, if there is one.
    """

    if in_flight:
        server.middleware.append(in_flight.answered)

    async def readyz(_: Request) -> JSONResponse:
        return await anyio.to_thread.run_sync(_readiness, index, checks, mcp_json)

    def mcp_json() -> dict[str, Any] | None:
        return _followed(followed_config(), is_public=listener.authentication is not None)

    plain, streaming = (
        StreamableHTTPSessionManager(
            server, stateless=True, json_response=as_json, security_settings=security_of(listener)
        )
        for as_json in (True, False)
    )
    security = security_of(listener)
    calls = CallsStreamed(StreamableHTTPASGIApp(plain), StreamableHTTPASGIApp(streaming))
    app = ExistingToolsets(calls, index, security)
    # without a session, nothing is streamed outside a call: a GET would wait for ever
    checked = _checked(app, listener)
    mcp = [Route(path, checked, methods=["POST"]) for path in (MCP_PATH, f"{MCP_PATH}/{{toolset}}")]
    toolsets = toolset_routes(index, listener.authentication, security)
    beside = [liveness_route(instance_id), Route("/readyz", readyz), *_metadata(listener), *toolsets, *routes]

    @asynccontextmanager
    async def running(_: Starlette) -> AsyncGenerator[None]:
        async with plain.run(), streaming.run():
            yield

    return Starlette(routes=[*mcp, *beside], lifespan=running)


def security_of(listener: HttpListener) -> TransportSecuritySettings:
    """Return a check that refuses other Host and Origin headers: a web page must not reach a local service."""
    hosts = [pattern for name in (*LOOPBACK_NAMES, *listener.http_hosts) for pattern in (name, f"{name}:*")]
    origins = [f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts]
    return TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=origins)


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

        At the end, requests in flight have `grace_s` seconds; then they get a JSON-RPC error.
        """
        self._listener = listener
        in_flight = InFlight()
        app = http_app(
            server,
            listener,
            index=index,
            routes=routes,
            checks=checks,
            followed_config=followed_config,
            instance_id=instance_id,
            in_flight=in_flight,
        )
        self._uvicorn = GracefulServer(HttpConfig(door(app)), in_flight, grace_s)

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
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        gc.freeze()  # a collection of all objects that the start made delays every request by 100 ms
        _log.info("query_service_started", url=self.url, authenticated=self._listener.authentication is not None)
        try:
            with closing(self._listener):
                self._uvicorn.run(sockets=[self._listener.server_socket])
        finally:
            _log.info("query_service_stopped")

    def stop(self) -> None:
        """Let `run` end once the requests in flight are answered. Safe to call from any thread."""
        self._uvicorn.should_exit = True


def _checked(app: ASGIApp, listener: HttpListener) -> ASGIApp:
    return guarded(app, listener.authentication) if listener.authentication else app


def _metadata(listener: HttpListener) -> list[Route]:
    resource = listener.authentication and listener.authentication.resource
    return metadata_routes(resource) if resource else []


def _followed(state: FollowedConfig | None, *, is_public: bool) -> dict[str, Any] | None:
    """Return the state as JSON; numbers only for an endpoint that requires no token of a service that does."""
    if state is None:
        return None
    if is_public:
        return {"servers": state.servers, "left_out": len(state.left_out), "is_usable": state.problem is None}
    return state.model_dump(mode="json")


def _readiness(index: ToolIndex, checks: Checks, mcp_json: Callable[[], dict[str, Any] | None]) -> JSONResponse:
    try:
        index.server("readiness")  # any id: even an empty answer shows that the index works
    except IndexUnavailable as error:
        _log.warning("index_not_ready", reason=str(error))
        return JSONResponse({"status": "index unavailable"}, status_code=503)
    problems = {name: trouble for name, check in checks.items() if (trouble := check())}
    if problems:
        _log.warning("service_not_ready", checks=problems)
        return JSONResponse({"status": "not ready", "checks": problems}, status_code=503)
    followed = mcp_json()
    return JSONResponse({"status": "ready"} | ({"mcp_json": followed} if followed else {}))
