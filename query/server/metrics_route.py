"""`GET /metrics` of the query service, for callers that see the whole catalogue or for every caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.transport_security import TransportSecurityMiddleware
from prometheus_client.metrics_core import GaugeMetricFamily
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from query.auth.http import CallerToken, guarded
from query.server.http import security_of
from shared.catalog import ENCODINGS, SERVER_STATES
from shared.catalog import Scope as Catalogued
from shared.errors import IndexUnavailable
from shared.service.routes import metrics_response, registry_with

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.registry import Collector
    from starlette.types import Receive, Scope, Send

    from query.catalogue import Catalogue
    from query.server.listener import HttpListener
    from shared.catalog import ServerRecord

PATH = "/metrics"


def metrics_route(
    catalogue: Catalogue, listener: HttpListener, *, is_open: bool, gauges: Iterable[Collector] = ()
) -> Route:
    """Return the route to the metrics of this process, of the catalogue and of `gauges`.

    Unless it is open, it requires a token without a restriction to groups. Without authentication, it checks Host and
    Origin, so that a web page cannot read it through another name of this host.
    """
    registry = registry_with(CatalogueGauges(lambda: catalogue.ledger.known(Catalogued())), *gauges)
    if is_open:
        return Route(PATH, _Metrics(registry, None), methods=["GET"])
    checked = _Metrics(registry, TransportSecurityMiddleware(security_of(listener)))
    app = guarded(checked, listener.authentication) if listener.authentication else checked
    return Route(PATH, app, methods=["GET"])


@dataclass(frozen=True, slots=True)
class CatalogueGauges:
    """A collector that reads the server records at each scrape."""

    records: Callable[[], Iterable[ServerRecord]]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the current gauges; without an answer from the index, only `toolscale_index_up`."""
        name, description = "toolscale_index_up", "1: the index answers; 0: it does not."
        try:
            records = list(self.records())
        except IndexUnavailable:
            yield GaugeMetricFamily(name, description, 0)
            return
        yield GaugeMetricFamily(name, description, 1)
        servers = GaugeMetricFamily("toolscale_servers", "Servers of the catalogue.", labels=["state"])
        for state in SERVER_STATES:
            servers.add_metric([state], sum(record.state == state for record in records))
        yield servers
        running = [record for record in records if record.status == "running" and record.is_listed]
        tools = sum(record.tool_count for record in running)
        yield GaugeMetricFamily("toolscale_tools", "Tools of running servers.", tools)
        tokens = GaugeMetricFamily("toolscale_catalogue_tokens", "Tokens of these tools.", labels=["encoding"])
        for encoding in ENCODINGS:
            tokens.add_metric([encoding], sum(record.tokens.get(encoding, 0) for record in running))
        yield tokens
        changed = sum(record.unaccepted for record in records)
        yield GaugeMetricFamily("toolscale_tools_changed", "Tools with changes that no operator accepted.", changed)


class _Metrics:
    """ASGI: checks the caller, and reads the registry in a thread."""

    def __init__(self, registry: CollectorRegistry, security: TransportSecurityMiddleware | None) -> None:
        self._registry = registry
        self._security = security

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await self._auth_error(request) or await metrics_response(request, self._registry)
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


def _is_unrestricted(user: AuthenticatedUser) -> bool:
    return isinstance(user.access_token, CallerToken) and user.access_token.caller.groups is None
