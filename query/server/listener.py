"""Where callers come in over HTTP: a bound address, and how they are known. Opened before anything heavy is loaded."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from query.auth.http import caller_of_request
from query.server.mcp import anonymous
from shared.errors import ConfigInvalid
from shared.service.sockets import bind
from shared.upstream.hosts import is_loopback

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from query.auth.authentication import Authentication
    from query.caller import Caller
    from shared.settings import Settings


@dataclass(frozen=True, slots=True)
class HttpListener:
    """A listening socket; without `authentication` whoever reaches it may come in.

    `http_hosts` are the names beside loopback's that a Host or Origin header may carry.
    """

    server_socket: socket.socket
    authentication: Authentication | None = None
    http_hosts: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """Return `http://host:port`."""
        host, port = self.server_socket.getsockname()[:2]
        return f"http://{_bracketed(host)}:{port}"

    @property
    def authenticate(self) -> Callable[[ServerRequestContext[Any]], Caller]:
        """Return how a request's caller is known."""
        return caller_of_request if self.authentication else anonymous

    def close(self) -> None:
        """Give the address back."""
        self.server_socket.close()


def open_listener(settings: Settings, authentication: Authentication | None = None) -> HttpListener:
    """Listen where the settings say; callers wait until they are served.

    Raises:
        ConfigInvalid: the address cannot be bound, or lies outside loopback without authentication and nobody said
            that it may.
    """
    if authentication is None:
        _refuse_public_bind(settings)
    return HttpListener(bind(settings.host, settings.port, "host and port"), authentication, _http_hosts(settings))


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
