"""The HTTP routes for liveness and metrics of every service."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from shared.observability.metrics import exposition

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from starlette.requests import Request


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
