"""The port for the health and metrics of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from shared.errors import ConfigInvalid
from shared.service.http import HttpConfig, HttpLimits, bind
from shared.service.process import caller_connections
from shared.service.routes import application, liveness_route, metrics_response, registry_with
from workers.monitoring.checks import CHECK_EVERY_S, STUCK_AFTER_S, PeriodicCheck, Prolonged

if TYPE_CHECKING:
    import socket

    from prometheus_client import CollectorRegistry
    from prometheus_client.registry import Collector
    from starlette.requests import Request

    from shared.settings import Settings
    from shared.upstream.followed_config import FollowedConfig
    from workers.monitoring.checks import HealthCheck

CONNECTIONS = 64
"""Connections to the port; its process needs its files for other work."""

_END_WITHIN_S = 5.0

_log = structlog.get_logger()


@contextmanager
def metrics_port(
    settings: Settings,
    checks: Mapping[str, HealthCheck],
    *,
    work: HealthCheck,
    gauges: Iterable[Collector] = (),
    stuck_after_s: float = STUCK_AFTER_S,
    followed_config: Callable[[], FollowedConfig | None] = lambda: None,
) -> Generator[None]:
    """Serve the metrics of this process and of `gauges`, and these checks, until the block ends.

    Do nothing without a port, or if it is in use.

    `/healthz` fails after `stuck_after_s` seconds in which `work` had a problem and the check `broker` had none.
    """
    if settings.metrics_port is None:
        yield
        return
    try:
        listener = bind(settings.metrics_host, settings.metrics_port, "metrics_host and metrics_port")
    except ConfigInvalid as error:  # the process must work without its metrics
        _log.error("metrics_port_failed", reason=str(error))  # the reason is complete
        yield
        return
    prolonged = Prolonged(work, checks["broker"], stuck_after_s)
    with (
        PeriodicCheck(prolonged.problem, CHECK_EVERY_S).running() as stuck,
        closing(listener),
        served(monitor_app(registry_with(*gauges), checks, stuck, followed_config), listener),
    ):
        _log.info("metrics_port_opened", port=listener.getsockname()[1])
        yield


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
        results = {name: problem or "ok" for name, problem in problems.items()}
        content: dict[str, object] = {"status": "ready" if is_ready else "not ready", "checks": results}
        if state := followed_config():
            content["mcp_json"] = {
                "servers": state.servers,
                "left_out": len(state.left_out),
                "problem": state.problem,
            }
        return JSONResponse(content, 200 if is_ready else 503)

    return application([Route("/metrics", metrics), liveness_route(problem=stuck), Route("/readyz", readyz)])


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
