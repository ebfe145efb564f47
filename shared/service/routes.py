"""The HTTP routes for liveness and metrics of every service.

Counters, histograms and gauges are objects beside the code that changes them, in the library's registry of this
process. The values of stores belong to collectors, which read them at each scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import anyio
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from starlette.requests import Request
    from starlette.types import Lifespan


def application(routes: Sequence[Route], lifespan: Lifespan[Starlette] | None = None) -> Starlette:
    """Return an application of these routes, which answers 404 to any other path: a redirect would repeat the Host."""
    app = Starlette(routes=routes, lifespan=lifespan)
    app.router.redirect_slashes = False
    return app


def liveness_route(instance_id: str | None = None, problem: Callable[[], str | None] = lambda: None) -> Route:
    """Return `/healthz`, which answers 200, with the instance id if there is one, while the process serves requests.

    It answers 503 if `problem` returns a reason to restart the process.
    """
    body = {"status": "alive"} | ({"instance_id": instance_id} if instance_id else {})

    async def healthz(_: Request) -> JSONResponse:
        reason = problem()
        return JSONResponse({"status": "stuck", "reason": reason}, 503) if reason else JSONResponse(body)

    return Route("/healthz", healthz)


async def metrics_response(request: Request, registry: CollectorRegistry) -> Response:
    """Return the metrics of `registry`, collected in a thread, in the format that the request accepts."""
    accept = request.headers.get("accept", "")
    body, content_type = await anyio.to_thread.run_sync(exposition, registry, accept)
    return Response(body, headers={"content-type": content_type})


def registry_with(*collectors: Collector) -> CollectorRegistry:
    """Return a registry of all metrics of this process and of these collectors."""
    registry = CollectorRegistry()
    for collector in (REGISTRY, *collectors):
        registry.register(collector)
    return registry


def exposition(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Return all current metrics of a registry, and the content type, negotiated by the Accept header.

    Blocks while the stores behind the gauges are read, so an event loop must not call it.
    """
    try:
        encode, content_type = choose_encoder(accept)
    except (ValueError, TypeError):  # the library cannot read the version that a client asks for
        encode, content_type = choose_encoder("")
    return encode(registry), content_type
