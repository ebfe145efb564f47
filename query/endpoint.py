"""One door for HTTP routes: Host and Origin, the caller, and errors as responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import structlog
from mcp.server.auth.routes import build_resource_metadata_url
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from pydantic import AnyHttpUrl
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from query.auth.authentication import bearer_token
from query.caller import ANYONE, OPERATOR
from query.tool import CATALOGUE_UNREACHABLE
from query.turns import run_in_thread
from shared.errors import AuthenticationFailed, CallsExhausted, IndexUnavailable, IntentsUnavailable, KeysUnavailable

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from query.caller import Caller, Permission
    from query.listener import HttpListener

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")

# Every endpoint requires at least this permission.
LEAST: Permission = "catalog:read"

Handler = Callable[[Request, "Caller"], Awaitable["ASGIApp"]]
"""Returns the response to a caller's request, or the application that sends it; may raise HTTPException."""

_log = structlog.get_logger()


def security_of(listener: HttpListener) -> TransportSecuritySettings:
    """Return a check that refuses other Host and Origin headers: a web page must not reach a local service."""
    hosts = [pattern for name in (*LOOPBACK_NAMES, *listener.http_hosts) for pattern in (name, f"{name}:*")]
    origins = [f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts]
    return TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=origins)


class Endpoint:
    """ASGI: checks Host and Origin, then the caller, and calls a handler; errors become JSON, or as a subclass says.

    401 without a valid token, 403 without the permission `needs`. The caller is in the request's state.
    With `any_host`, Host and Origin are not checked.
    """

    def __init__(
        self, listener: HttpListener, handler: Handler, *, needs: Permission = LEAST, any_host: bool = False
    ) -> None:
        self._security = TransportSecurityMiddleware(None if any_host else security_of(listener))
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
        refused = await self._security.validate_request(request)
        if refused:
            return refused
        try:
            request.state.caller = caller = await self._caller(request)
            return await self._handler(request, caller)
        except HTTPException as error:
            return self.error(request, error)
        except ClientDisconnect:  # in the middle of its body
            return Response(status_code=400)
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


def in_turn(read: Callable[[Request, Caller], ASGIApp]) -> Handler:
    """Return a handler that calls `read` in a thread, in a turn of the caller."""

    async def handler(request: Request, caller: Caller) -> ASGIApp:
        return await run_in_thread(caller.name, read, request, caller)

    return handler
