"""`GET /metrics` of the query service, for callers that see the whole catalogue or for every caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.transport_security import TransportSecurityMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from query.auth.http import CallerToken, guarded
from query.metrics import CatalogueGauges
from query.server.http import security_of
from shared.catalog import Scope as Catalogued
from shared.service.routes import metrics_response

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from starlette.types import Receive, Scope, Send

    from query.catalogue import Catalogue
    from query.server.listener import HttpListener

PATH = "/metrics"


def metrics_route(catalogue: Catalogue, listener: HttpListener, *, is_open: bool) -> Route:
    """Return the route, and register the gauges of the catalogue.

    Metrics name servers. Unless the route is open, it requires a token without a restriction to groups. Without
    authentication, it checks Host and Origin, so that a web page cannot read it through another name of this host.
    """
    registry = catalogue.metrics.registry
    registry.register(CatalogueGauges(lambda: catalogue.ledger.known(Catalogued())))
    if is_open:
        return Route(PATH, _Metrics(registry, None), methods=["GET"])
    checked = _Metrics(registry, TransportSecurityMiddleware(security_of(listener)))
    app = guarded(checked, listener.authentication) if listener.authentication else checked
    return Route(PATH, app, methods=["GET"])


class _Metrics:
    """ASGI: checks the caller, and reads the registry in a thread."""

    def __init__(self, registry: CollectorRegistry, security: TransportSecurityMiddleware | None) -> None:
        self._registry = registry
        self._security = security

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await self._auth_error(request) or await self._exposition(request)
        await response(scope, receive, send)

    async def _auth_error(self, request: Request) -> Response | None:
        if self._security is None:
            return None
        user = request.scope.get("user")
        if not isinstance(user, AuthenticatedUser):
            return await self._security.validate_request(request)
        # any Host is fine here: no web page has the token, and Prometheus often uses a resolved address
        refused = {"error": "metrics are of all groups, and this token is of some"}
        return None if _is_unrestricted(user) else JSONResponse(refused, 403)

    async def _exposition(self, request: Request) -> Response:
        return await metrics_response(request, self._registry)


def _is_unrestricted(user: AuthenticatedUser) -> bool:
    return isinstance(user.access_token, CallerToken) and user.access_token.caller.groups is None
