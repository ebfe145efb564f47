"""Bearer tokens over HTTP, as an OAuth 2.1 resource server takes them: 401, 403, and where to get a token."""

from __future__ import annotations

import math
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

from query.caller import USING, Caller, Permission
from shared.errors import AuthenticationFailed, KeysUnavailable

if TYPE_CHECKING:
    from typing import Any

    from mcp.server.context import ServerRequestContext
    from starlette.routing import Route
    from starlette.types import ASGIApp

    from query.auth.authentication import Authentication, Resource


# Whoever may not even read the catalogue has no business here.
LEAST: Permission = "catalog:read"


class CallerToken(AccessToken):
    """What is left of a token once it was checked: whom it stands for."""

    caller: Caller


def guarded(
    app: ASGIApp, authentication: Authentication, failures: AuthFailureLog | None = None, needs: Permission = LEAST
) -> ASGIApp:
    """Return the app behind a check: 401 without a token that opens it, 403 where it opens too little.

    503, and no 401, where a token cannot be checked now: a client would throw a good one away.
    """
    resource = authentication.resource
    metadata = build_resource_metadata_url(AnyHttpUrl(resource.url)) if resource else None
    return AuthenticationMiddleware(
        RequireAuthMiddleware(app, [needs], metadata),
        backend=_Bearer(authentication, failures or AuthFailureLog()),
        on_error=lambda _, error: JSONResponse({"error": str(error)}, 503, {"Retry-After": "5"}),
    )


def metadata_routes(resource: Resource) -> list[Route]:
    """Return the route of the metadata (RFC 9728) by which a client finds the issuer."""
    issuer = AnyHttpUrl(resource.issuer)
    return create_protected_resource_routes(AnyHttpUrl(resource.url), [issuer], sorted(USING), "Toolscale")


def caller_of_request(context: ServerRequestContext[Any]) -> Caller:
    """Return the caller whose token this HTTP request came with.

    Raises:
        MCPError: it came by a way without a check.
    """
    user = context.request.scope.get("user") if isinstance(context.request, Request) else None
    if isinstance(user, AuthenticatedUser) and isinstance(user.access_token, CallerToken):
        return user.access_token.caller
    raise MCPError(code=INVALID_REQUEST, message="authentication required")


class _Bearer(AuthenticationBackend):
    def __init__(self, authentication: Authentication, failures: AuthFailureLog) -> None:
        self._authentication, self._failures = authentication, failures

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, AuthenticatedUser] | None:
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
        return AuthCredentials(sorted(caller.permissions)), AuthenticatedUser(_token_of(caller))


def _token_of(caller: Caller) -> CallerToken:
    """Return the caller in the form that the SDK carries it in; the secret itself goes no further."""
    return CallerToken(token="", client_id=caller.name, scopes=sorted(caller.permissions), caller=caller)


MAX_LINES = 10
PER_S = 60.0

_log = structlog.get_logger()


class AuthFailureLog:
    """At most LINES in PER_S seconds, whoever knocks; the next line says how many were left out."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._began_at_s = -math.inf
        self._written = self._suppressed = 0

    def log(self, reason: str, client: str | None) -> None:
        """Write that a caller at this address was refused, or count it."""
        now_s = self._clock_s()
        if now_s - self._began_at_s >= PER_S:
            self._began_at_s, self._written = now_s, 0
        if self._written >= MAX_LINES:
            self._suppressed += 1
            return
        _log.warning("authentication_failed", reason=reason, client=client, left_out=self._suppressed)
        self._written += 1
        self._suppressed = 0
