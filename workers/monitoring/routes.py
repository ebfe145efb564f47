"""The routes of the metrics port, and a server for them in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from shared.service.http import HttpConfig, HttpLimits
from shared.service.process import caller_connections
from shared.service.routes import liveness_route, metrics_response

if TYPE_CHECKING:
    import socket

    from prometheus_client import CollectorRegistry
    from starlette.requests import Request

    from shared.upstream.followed_config import FollowedConfig
    from workers.monitoring.checks import HealthCheck

CONNECTIONS = 64
"""Connections to the port; its process needs its files for other work."""

_END_WITHIN_S = 5.0


def monitor_app(
    registry: CollectorRegistry,
    checks: Mapping[str, HealthCheck],
    stuck: HealthCheck,
    followed_config: Callable[[], FollowedConfig | None],
) -> Starlette:
    """Return `/metrics`, `/healthz`, and `/readyz`: 503 with the reasons if any check finds a problem.

    `/healthz` is 503 if `stuck` finds one. `/readyz` has the state of the followed `mcp.json`, without its servers.
    """

    async def metrics(request: Request) -> Response:
        return await metrics_response(request, registry)

    async def readyz(_: Request) -> JSONResponse:
        problems = {name: check() for name, check in checks.items()}
        is_ready = not any(problems.values())
        content = {"status": "ready" if is_ready else "not ready"}
        results = {name: problem or "ok" for name, problem in problems.items()}
        return JSONResponse({**content, "checks": results, **_followed(followed_config())}, 200 if is_ready else 503)

    return Starlette(routes=[Route("/metrics", metrics), liveness_route(problem=stuck), Route("/readyz", readyz)])


def _followed(state: FollowedConfig | None) -> dict[str, object]:
    if state is None:
        return {}
    return {"mcp_json": {"servers": state.servers, "left_out": len(state.left_out), "problem": state.problem}}


@contextmanager
def served(app: Starlette, listener: socket.socket) -> Generator[None]:
    """Serve an application on this socket, in a thread, until the block ends."""
    server = uvicorn.Server(HttpConfig(app, HttpLimits(min(CONNECTIONS, caller_connections()))))
    thread = threading.Thread(target=server.run, args=([listener],), name="toolscale metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(_END_WITHIN_S)
