"""Bearer tokens over HTTP, as an OAuth 2.1 resource server checks them: 401, 403 and resource metadata."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, RequireAuthMiddleware
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.routes import build_resource_metadata_url, create_protected_resource_routes
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_REQUEST
from pydantic import AnyHttpUrl
from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse

from query.caller import ANYONE, USING, Caller, Permission
from shared.errors import AuthenticationFailed, KeysUnavailable
from shared.service.logging import LineLimit

if TYPE_CHECKING:
    from typing import Any

    from mcp.server.context import ServerRequestContext
    from starlette.routing import Route
    from starlette.types import ASGIApp, Scope

    from query.auth.authentication import Authentication, Resource


OPERATOR = "toolscale.operator"
"""The key in the scope of a request that came with the secret of this process."""

# Every endpoint requires at least this permission.
LEAST: Permission = "catalog:read"


class CallerToken(AccessToken):
    """A checked token: its caller, without the secret."""

    caller: Caller


def guarded(
    app: ASGIApp, authentication: Authentication, failures: AuthFailureLog | None = None, needs: Permission = LEAST
) -> ASGIApp:
    """Return the app behind a check: 401 without a valid token, 403 without the permission.

    503 if a token cannot be checked now: after a 401, a client would discard a valid token.
    """
    resource = authentication.resource
    metadata = build_resource_metadata_url(AnyHttpUrl(resource.url)) if resource else None
    return AuthenticationMiddleware(
        RequireAuthMiddleware(app, [needs], metadata),
        backend=_Bearer(authentication, failures or AuthFailureLog()),
        on_error=lambda _, error: JSONResponse({"error": str(error)}, 503, {"Retry-After": "5"}),
    )


def metadata_routes(resource: Resource) -> list[Route]:
    """Return the route of the resource metadata (RFC 9728), which names the issuer."""
    issuer = AnyHttpUrl(resource.issuer)
    return create_protected_resource_routes(AnyHttpUrl(resource.url), [issuer], sorted(USING), "Toolscale")


def caller_of_request(context: ServerRequestContext[Any]) -> Caller:
    """Return the caller of this HTTP request's token.

    Raises:
        MCPError: the request was not checked.
    """
    caller = caller_of(context.request.scope) if isinstance(context.request, Request) else None
    if caller is None:
        raise MCPError(code=INVALID_REQUEST, message="authentication required")
    return caller


def caller_of(scope: Scope) -> Caller | None:
    """Return the caller of an HTTP request that was checked; None of one that was not."""
    user = scope.get("user")
    token = user.access_token if isinstance(user, AuthenticatedUser) else None
    return token.caller if isinstance(token, CallerToken) else None


def caller_or_anyone(context: ServerRequestContext[Any]) -> Caller:
    """Return the caller of a request to a service without authentication, which may still know who sent it."""
    return (caller_of(context.request.scope) if isinstance(context.request, Request) else None) or ANYONE


def user_of(caller: Caller) -> AuthenticatedUser:
    """Return the caller as the `user` of a request, without the secret."""
    token = CallerToken(token="", client_id=caller.name, scopes=sorted(caller.permissions), caller=caller)
    return AuthenticatedUser(token)


class _Bearer(AuthenticationBackend):
    def __init__(self, authentication: Authentication, failures: AuthFailureLog) -> None:
        self._authentication, self._failures = authentication, failures

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, AuthenticatedUser] | None:
        known = caller_of(conn.scope)
        if known:  # the operator, by the secret of this process
            return AuthCredentials(sorted(known.permissions)), user_of(known)
        scheme, _, token = conn.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        try:
            caller = await self._authentication.caller(token.strip())
        except AuthenticationFailed as error:
            self._failures.log(str(error), conn.client.host if conn.client else None)
            return None
        except KeysUnavailable as error:
            raise AuthenticationError(str(error)) from error
        return AuthCredentials(sorted(caller.permissions)), user_of(caller)


_log = structlog.get_logger()


class AuthFailureLog:
    """Logs refusals within a limit of lines; the next line counts those left out."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._lines = LineLimit(clock_s=clock_s)

    def log(self, reason: str, client: str | None) -> None:
        """Log the refusal of a caller at this address, or count it."""
        left_out = self._lines.admit()
        if left_out is not None:
            _log.warning("authentication_failed", reason=reason, client=client, left_out=left_out)
