"""The HTTP application of the query service: `/mcp`, health and readiness, and metrics."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import structlog
from mcp.server.auth.routes import create_protected_resource_routes
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from query.caller import USING
from query.endpoint import Endpoint
from query.listener import MCP_PATH
from query.metrics import CatalogueGauges
from query.streaming import CallsStreamed
from shared import catalog
from shared.errors import IndexUnavailable
from shared.service.routes import application, liveness_route, metrics_response, registry_with

if TYPE_CHECKING:
    from mcp.server import Server
    from prometheus_client.registry import Collector
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from query.caller import Caller
    from query.catalogue import Catalogue
    from query.listener import HttpListener
    from shared.index.tools import ToolIndex
    from shared.upstream.followed_config import FollowedConfig

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
) -> Starlette:
    """Return `/mcp`, stateless, so that any replica answers any request, with health and `routes`.

    `/mcp/{toolset}` is the same with this toolset. `/healthz` has the instance id, if there is one. Each of the
    `routes` authenticates callers itself, by an `Endpoint`.
    """
    # `Endpoint` has checked Host and Origin
    plain, streaming = (
        StreamableHTTPSessionManager(server, stateless=True, json_response=as_json) for as_json in (True, False)
    )
    calls = CallsStreamed(StreamableHTTPASGIApp(plain), StreamableHTTPASGIApp(streaming))

    async def mcp(request: Request, caller: Caller) -> ASGIApp:
        name = request.path_params.get("toolset")
        # a caller whose token is for another toolset does not learn which toolsets exist
        if name is not None and caller.toolset in (None, name) and not await exists(name):
            raise HTTPException(404, f"there is no toolset {name}")
        return calls

    async def exists(toolset: str) -> bool:
        try:  # without a turn: where too many requests wait, the error has to be one of JSON-RPC
            return await anyio.to_thread.run_sync(index.toolset, toolset) is not None
        except IndexUnavailable:
            return True  # a JSON-RPC error follows

    @asynccontextmanager
    async def running(_: Starlette) -> AsyncGenerator[None]:
        async with plain.run(), streaming.run():
            yield

    endpoint = Endpoint(listener, mcp)
    # without a session, nothing is streamed outside a call: a GET would wait for ever
    of_mcp = [Route(path, endpoint, methods=["POST"]) for path in (MCP_PATH, f"{MCP_PATH}/{{toolset}}")]
    of_health = [liveness_route(instance_id), _readiness_route(listener, index, checks, followed_config)]
    beside = [*of_health, *_metadata_routes(listener), *routes]
    return application([*of_mcp, *beside], running)


def _readiness_route(
    listener: HttpListener, index: ToolIndex, checks: Checks, followed_config: Callable[[], FollowedConfig | None]
) -> Route:
    """Return `/readyz`, which succeeds while the index answers and no check returns a problem.

    The response has the state of `followed_config`; with authentication, without paths and names of servers.
    """

    async def readyz(_: Request) -> JSONResponse:
        return await anyio.to_thread.run_sync(readiness)

    def readiness() -> JSONResponse:
        try:
            index.server("readiness")  # any id: even an empty answer shows that the index works
        except IndexUnavailable as error:
            _log.warning("index_not_ready", reason=str(error))
            return JSONResponse({"status": "index unavailable"}, 503)
        problems = {name: trouble for name, check in checks.items() if (trouble := check())}
        if problems:
            _log.warning("service_not_ready", checks=problems)
            return JSONResponse({"status": "not ready", "checks": problems}, 503)
        followed = followed_config()
        if followed is None:
            return JSONResponse({"status": "ready"})
        shown = followed.model_dump(mode="json")
        if listener.authentication:  # everyone reads this endpoint, while the rest of the service requires a token
            shown = {"servers": followed.servers, "left_out": len(followed.left_out)}
            shown["is_usable"] = followed.problem is None
        return JSONResponse({"status": "ready", "mcp_json": shown})

    return Route("/readyz", readyz)


def _metadata_routes(listener: HttpListener) -> list[Route]:
    """Return the route of the resource metadata (RFC 9728), which names the issuer; none without an issuer."""
    resource = listener.authentication and listener.authentication.resource
    if not resource:
        return []
    issuer = AnyHttpUrl(resource.issuer)
    return create_protected_resource_routes(AnyHttpUrl(resource.url), [issuer], sorted(USING), "Toolscale")


def metrics_route(
    catalogue: Catalogue, listener: HttpListener, *, is_open: bool, gauges: Iterable[Collector] = ()
) -> Route:
    """Return `/metrics`: this process, the catalogue and `gauges`.

    Unless it is open, it requires a token without a restriction to groups. Without authentication, it checks Host and
    Origin, so that a web page cannot read it through another name of this host.
    """
    registry = registry_with(CatalogueGauges(lambda: catalogue.ledger.known(catalog.Scope())), *gauges)

    # no turn: a scrape reads no search index, and waits for no caller
    async def metrics(request: Request) -> Response:
        return await metrics_response(request, registry)

    async def checked(request: Request, caller: Caller) -> Response:
        if caller.groups is not None:
            raise HTTPException(403, "metrics are of all groups, and this token is of some")
        return await metrics(request)

    # with a token any Host is fine: no web page has one, and Prometheus often uses a resolved address
    guarded = Endpoint(listener, checked, any_host=listener.authentication is not None)
    return Route("/metrics", metrics if is_open else guarded, methods=["GET"])
