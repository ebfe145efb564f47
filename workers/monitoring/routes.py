"""The routes of a process's own port, and a server for them in a thread."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from shared.observability.metrics import exposition

if TYPE_CHECKING:
    import socket

    from prometheus_client import CollectorRegistry
    from starlette.requests import Request

    from workers.monitoring.server import HealthCheck

_END_WITHIN_S = 5.0


def monitor_app(registry: CollectorRegistry, checks: Mapping[str, HealthCheck]) -> Starlette:
    """Return `/metrics`, `/healthz`, and `/readyz`: 503 with the reasons where any check finds trouble."""

    async def metrics(request: Request) -> Response:
        accept = request.headers.get("accept", "")
        body, content_type = await anyio.to_thread.run_sync(exposition, registry, accept)
        return Response(body, headers={"content-type": content_type})

    async def readyz(_: Request) -> JSONResponse:
        problems = {name: problem() for name, problem in checks.items()}
        is_ready = not any(problems.values())
        content = {"status": "ready" if is_ready else "not ready"}
        results = {name: trouble or "ok" for name, trouble in problems.items()}
        return JSONResponse({**content, "checks": results}, 200 if is_ready else 503)

    return Starlette(routes=[Route("/metrics", metrics), Route("/healthz", _healthz), Route("/readyz", readyz)])


@contextmanager
def served(app: Starlette, listener: socket.socket) -> Generator[None]:
    """Serve an application on this socket, from a thread of its own, until the block ends."""
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
    thread = threading.Thread(target=server.run, args=([listener],), name="toolscale metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(_END_WITHIN_S)


async def _healthz(_: Request) -> JSONResponse:
    return JSONResponse({"status": "alive"})
