"""The HTTP address of the service and the authentication of its callers, opened before the model is loaded."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from shared.errors import ConfigInvalid
from shared.service.http import bind
from shared.upstream.hosts import is_loopback

if TYPE_CHECKING:
    from query.auth.authentication import Authentication
    from shared.settings import Settings


MCP_PATH = "/mcp"


@dataclass(frozen=True, slots=True)
class HttpListener:
    """A listening socket; without `authentication`, every caller that reaches it may use it.

    A Host or Origin header may name loopback or one of `http_hosts`. `public_url` is that of `/mcp`, where it is set.
    """

    server_socket: socket.socket
    authentication: Authentication | None = None
    http_hosts: tuple[str, ...] = ()
    public_url: str | None = None

    @property
    def address(self) -> str:
        """Return `http://host:port`."""
        host, port = self.server_socket.getsockname()[:2]
        return f"http://{_bracketed(host)}:{port}"

    @property
    def public_address(self) -> str | None:
        """Return the public URL of the service without the path of MCP, where it is set."""
        return self.public_url.rstrip("/").removesuffix(MCP_PATH) if self.public_url else None

    @property
    def is_local(self) -> bool:
        """Return whether only this machine reaches the socket."""
        return is_loopback(self.server_socket.getsockname()[0])

    def close(self) -> None:
        """Close the socket."""
        self.server_socket.close()


def open_listener(settings: Settings, authentication: Authentication | None = None) -> HttpListener:
    """Listen at the address of the settings; callers wait until `HttpServer.run`.

    Raises:
        ConfigInvalid: the address cannot be bound, or is outside loopback without authentication and without the
            setting that allows it.
    """
    if authentication is None and not settings.allow_unauthenticated_bind and not is_loopback(settings.host):
        raise ConfigInvalid(
            f"setting host: {settings.host!r} is outside loopback, and callers are not authenticated; "
            "set TOOLSCALE_TOKENS_FILE or TOOLSCALE_JWT_ISSUER, or TOOLSCALE_ALLOW_UNAUTHENTICATED_BIND=true "
            "where only trusted clients reach the port"
        )
    server_socket = bind(settings.host, settings.port, "host and port")
    public = urlsplit(settings.public_url or "").hostname
    hosts = (settings.host, public) if public else (settings.host,)
    http_hosts = (*map(_bracketed, hosts), *settings.allowed_http_hosts)
    return HttpListener(server_socket, authentication, http_hosts, settings.public_url)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
