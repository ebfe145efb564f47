"""One door for HTTP routes: Host and Origin, the caller, and errors as responses."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import lru_cache
from ipaddress import IPv6Address
from typing import TYPE_CHECKING

import structlog
from mcp.server.auth.routes import build_resource_metadata_url
from pydantic import AnyHttpUrl
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from query.auth.authentication import bearer_token
from query.caller import ANYONE, OPERATOR
from query.tool import CATALOGUE_UNREACHABLE
from shared.errors import AuthenticationFailed, CallsExhausted, IndexUnavailable, IntentsUnavailable, KeysUnavailable
from shared.quoting import printable
from shared.service.logging import LineLimit

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.types import ASGIApp, Receive, Scope, Send

    from query.caller import Caller, Permission
    from query.listener import HttpListener

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
HOSTS_SETTING = "TOOLSCALE_ALLOWED_HTTP_HOSTS"

_AUTHORITY = re.compile(r"(?:\[([0-9a-f:.]{2,45})\]|([^\s:/@?#\[\]\\]+?)\.?)(?::([0-9]{0,5}))?", re.IGNORECASE)
_DEFAULT_PORTS = ("", "80", "443")
_MOST_REFUSED = 1_000
_SHOWN_CHARACTERS = 200

# Every endpoint requires at least this permission.
LEAST: Permission = "catalog:read"

Handler = Callable[[Request, "Caller"], Awaitable["ASGIApp"]]
"""Returns the response to a caller's request, or the application that sends it; may raise HTTPException."""

_log = structlog.get_logger()


_refused = LineLimit()


class OwnHosts:
    """The hosts by which clients reach the service, compared as URLs are: a web page must not reach it by another one.

    A name without a port stands for each port.
    """

    def __init__(self, listener: HttpListener) -> None:
        names = (*LOOPBACK_NAMES, *(name.rpartition("//")[2] for name in listener.http_hosts))
        self._known = {_authority(name) or (name.lower(), None) for name in names}

    def refusal(self, headers: Headers) -> Response | None:
        """Return the response to a request with the Host or Origin of another service, which names the setting."""
        host = headers.get("host", "")
        if not self._has(host):
            _note_refused(host[:_SHOWN_CHARACTERS])
            return PlainTextResponse(_refusal("Host"), 421)
        origin = headers.get("origin", "")
        scheme, separator, authority = origin.partition("://")
        if origin and not (separator and scheme.lower() in ("http", "https") and self._has(authority)):
            return PlainTextResponse(_refusal("Origin"), 403)
        return None

    def _has(self, text: str) -> bool:
        found = _authority(text)
        return found is not None and (found in self._known or (found[0], None) in self._known)


def _authority(text: str) -> tuple[str, str | None] | None:
    """Return the host and the port of a Host header, equal for equal ones; None if it is malformed.

    The port is None where it is missing, and empty where it is that of the scheme.
    """
    found = _AUTHORITY.fullmatch(text)
    if not found:
        return None
    address, name, port = found.groups()
    try:
        host = str(IPv6Address(address)) if address else name.lower()
    except ValueError:
        return None
    return host, port if port is None else "" if port in _DEFAULT_PORTS else port


def _refusal(header: str) -> str:
    return f"The {header} header names no host of this service; if it is one, add it to the setting {HOSTS_SETTING}.\n"


@lru_cache(_MOST_REFUSED)
def _note_refused(host: str) -> None:
    """Log a refused host, once while it is among the last ones, and within a limit of lines."""
    left_out = _refused.admit()
    if left_out is not None:
        _log.warning("host_refused", host=printable(host), setting=HOSTS_SETTING, left_out=left_out)


class Endpoint:
    """ASGI: checks Host and Origin, then the caller, and calls a handler; errors become JSON, or as a subclass says.

    401 without a valid token, 403 without the permission `needs`. The caller is in the request's state.
    With `any_host`, Host and Origin are not checked.
    """

    def __init__(
        self, listener: HttpListener, handler: Handler, *, needs: Permission = LEAST, any_host: bool = False
    ) -> None:
        self._hosts = None if any_host else OwnHosts(listener)
        self._authentication = listener.authentication
        self._handler = handler
        self._needs = needs
        resource = listener.authentication and listener.authentication.resource
        self._metadata = build_resource_metadata_url(AnyHttpUrl(resource.url)) if resource else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        request = Request(scope, receive)
        answer = await self._answer(request)
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> ASGIApp:
        if self._hosts and (refused := self._hosts.refusal(request.headers)):
            return refused
        try:
            request.state.caller = caller = await self._caller(request)
            return await self._handler(request, caller)
        except HTTPException as error:
            return self.error(request, error)
        except ClientDisconnect:  # in the middle of its body
            return Response(status_code=400)
        except UnicodeEncodeError:  # JSON can have half of a surrogate pair, which neither a store nor an answer can
            return self.error(request, HTTPException(400, "expected text without halves of surrogate pairs"))
        except CallsExhausted as error:
            return self.error(request, HTTPException(503, str(error)))
        except (IndexUnavailable, IntentsUnavailable) as error:
            _log.warning("catalogue_read_failed", path=request.scope["path"], reason=str(error))
            return self.error(request, HTTPException(503, CATALOGUE_UNREACHABLE))

    async def _caller(self, request: Request) -> Caller:
        operator: Caller | None = request.scope.get(OPERATOR)
        if operator:
            return operator
        if self._authentication is None:
            return ANYONE
        token = self.token(request.headers.get("authorization", ""))
        unauthenticated = HTTPException(
            401, "Authentication required", self.challenge("invalid_token", "Authentication required")
        )
        if token is None:
            raise unauthenticated
        try:
            caller = await self._authentication.caller(token)
        except AuthenticationFailed as error:
            self._authentication.log_refusal(str(error), request.client.host if request.client else None)
            raise unauthenticated from error
        except KeysUnavailable as error:  # after a 401, a client would discard a valid token
            raise HTTPException(503, str(error), {"Retry-After": "5"}) from error
        if self._needs not in caller.permissions:
            lacking = f"This token lacks the permission {self._needs}"
            raise HTTPException(403, lacking, self.challenge("insufficient_scope", f"Required scope: {self._needs}"))
        return caller

    def token(self, authorization: str) -> str | None:
        """Return the token of an Authorization header, None if it has none."""
        return bearer_token(authorization)

    def challenge(self, error: str, description: str) -> dict[str, str]:
        """Return the header that asks for another token, by OAuth's name of the error."""
        where = f', resource_metadata="{self._metadata}"' if self._metadata else ""
        return {"WWW-Authenticate": f'Bearer error="{error}", error_description="{description}"{where}'}

    def error(self, request: Request, error: HTTPException) -> Response:
        """Return the response to a request that ended with this error."""
        del request
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
