"""The query service over streamable HTTP: routes, who may reach them, and a server that can be stopped."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import anyio
import structlog
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import JSONResponse
from starlette.routing import Route

from shared.errors import ConfigInvalid, IndexUnavailable

if TYPE_CHECKING:
    from mcp.server import Server
    from starlette.applications import Starlette
    from starlette.requests import Request

    from shared.index.contract import ToolIndex
    from shared.settings import Settings

MCP_PATH = "/mcp"
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
# Requests that are still running at shutdown get this long.
GRACE_S = 5

_log = structlog.get_logger()


def http_app(
    server: Server[Any], *, index: ToolIndex, http_hosts: Iterable[str] = (), routes: Sequence[Route] = ()
) -> Starlette:
    """Return `/mcp`, stateless, so that any replica answers any request, with `/healthz`, `/readyz` and `routes`.

    Answers are plain JSON, which has no size limit of its own; in an event stream clients refuse one above 1 MiB.
    `http_hosts` are the names beside loopback's that a Host or Origin header may carry.
    """

    async def readyz(_: Request) -> JSONResponse:
        return await anyio.to_thread.run_sync(_readiness, index)

    return server.streamable_http_app(
        streamable_http_path=MCP_PATH,
        stateless_http=True,
        json_response=True,
        transport_security=_only(http_hosts),
        custom_starlette_routes=[Route("/healthz", _healthz), Route("/readyz", readyz), *routes],
    )


class HttpServer:
    """The query service on a port of its own, bound when this is made, so that `url` holds from then on."""

    def __init__(
        self, server: Server[Any], *, index: ToolIndex, settings: Settings, routes: Sequence[Route] = ()
    ) -> None:
        """Bind the port; `routes` are served beside the query service's own.

        Raises:
            ConfigInvalid: the address cannot be bound, or lies outside loopback and nobody said that it may.
        """
        _refuse_public_bind(settings)
        self._socket = _bind(settings.host, settings.port)
        http_hosts = [_bracketed(settings.host), *settings.allowed_http_hosts]
        app = http_app(server, index=index, http_hosts=http_hosts, routes=routes)
        # logging is configured by the process; each request has its own line already
        config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=GRACE_S)
        self._uvicorn = uvicorn.Server(config)

    @property
    def url(self) -> str:
        """Return the address MCP clients connect to."""
        host, port = self._socket.getsockname()[:2]
        return f"http://{_bracketed(host)}:{port}{MCP_PATH}"

    def run(self) -> None:
        """Serve until `stop`; in the main thread also until SIGINT or SIGTERM, which is raised again afterwards."""
        _log.info("query_service_started", url=self.url)
        try:
            with self._socket:
                self._uvicorn.run(sockets=[self._socket])
        finally:
            _log.info("query_service_stopped")

    def stop(self) -> None:
        """Let `run` end once the requests in flight are answered. Safe to call from any thread."""
        self._uvicorn.should_exit = True


async def _healthz(_: Request) -> JSONResponse:
    return JSONResponse({"status": "alive"})


def _readiness(index: ToolIndex) -> JSONResponse:
    try:
        index.server("readiness")  # any id: an answer, even that there is none, shows that the index is there
    except IndexUnavailable as error:
        _log.warning("index_not_ready", reason=str(error))
        return JSONResponse({"status": "index unavailable"}, status_code=503)
    return JSONResponse({"status": "ready"})


def _only(http_hosts: Iterable[str]) -> TransportSecuritySettings:
    """Return a check that refuses other Host and Origin headers: a web page must not reach a local service."""
    hosts = [pattern for name in (*LOOPBACK_NAMES, *http_hosts) for pattern in (name, f"{name}:*")]
    origins = [f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts]
    return TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=origins)


def _refuse_public_bind(settings: Settings) -> None:
    if settings.allow_unauthenticated_bind or _is_loopback(settings.host):
        return
    raise ConfigInvalid(
        f"setting host: {settings.host!r} is outside loopback, and the query service has no authentication; "
        "set TOOLSCALE_ALLOW_UNAUTHENTICATED_BIND=true where only trusted clients reach the port"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, reuse_port=False)
    except OSError as error:
        raise ConfigInvalid(f"settings host and port: cannot listen on {host}:{port}: {error.strerror}") from error
    # connections inherit it; without it the end of each answer waits 40 ms for an acknowledgement
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
