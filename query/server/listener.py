"""The HTTP address of the service and the authentication of its callers, opened before the model is loaded."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from query.auth.http import caller_of_request, caller_or_anyone
from shared.errors import ConfigInvalid
from shared.service.http import bind
from shared.upstream.hosts import is_loopback

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from query.auth.authentication import Authentication
    from query.caller import Caller
    from shared.settings import Settings


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
    def authenticate(self) -> Callable[[ServerRequestContext[Any]], Caller]:
        """Return the function from a request to its caller."""
        return caller_of_request if self.authentication else caller_or_anyone

    def close(self) -> None:
        """Close the socket."""
        self.server_socket.close()


def open_listener(settings: Settings, authentication: Authentication | None = None) -> HttpListener:
    """Listen at the address of the settings; callers wait until `HttpServer.run`.

    Raises:
        ConfigInvalid: the address cannot be bound, or is outside loopback without authentication and without the
            setting that allows it.
    """
    if authentication is None:
        _refuse_public_bind(settings)
    server_socket = bind(settings.host, settings.port, "host and port")
    return HttpListener(server_socket, authentication, _http_hosts(settings), settings.public_url)


def _http_hosts(settings: Settings) -> tuple[str, ...]:
    public = urlsplit(settings.public_url or "").hostname
    return (_bracketed(settings.host), *settings.allowed_http_hosts, *([_bracketed(public)] if public else []))


def _refuse_public_bind(settings: Settings) -> None:
    if settings.allow_unauthenticated_bind or is_loopback(settings.host):
        return
    raise ConfigInvalid(
        f"setting host: {settings.host!r} is outside loopback, and callers are not authenticated; "
        "set TOOLSCALE_TOKENS_FILE or TOOLSCALE_JWT_ISSUER, or TOOLSCALE_ALLOW_UNAUTHENTICATED_BIND=true "
        "where only trusted clients reach the port"
    )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
