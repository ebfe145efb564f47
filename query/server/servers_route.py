"""`GET /servers`: the records of servers that a process of both sides has, for `toolscale ls --url`.

A caller gets the servers of its groups and its toolset. A query service without these records has no such route.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog
from mcp.server.transport_security import TransportSecurityMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from query.auth.http import caller_of, guarded
from query.caller import ANYONE
from query.server.http import security_of
from query.tools.tool import CATALOGUE_UNREACHABLE
from query.toolsets.offers import with_toolset_scope
from query.turns import run_in_thread
from shared.errors import CallsExhausted, IndexUnavailable, IntentsUnavailable

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from query.caller import Caller
    from query.catalogue import Catalogue
    from query.server.listener import HttpListener
    from shared.catalog import Scope as Catalogued

PATH = "/servers"

Records = Callable[["Catalogued"], dict[str, Any]]
"""Return the records of the servers in a scope as JSON."""

_log = structlog.get_logger()


def servers_route(catalogue: Catalogue, listener: HttpListener, records: Records) -> Route:
    """Return the route, with the authentication of this listener and a check of Host and Origin."""
    endpoint = _Servers(catalogue, records, TransportSecurityMiddleware(security_of(listener)))
    app = guarded(endpoint, listener.authentication) if listener.authentication else endpoint
    return Route(PATH, app, methods=["GET"])


class _Servers:
    """ASGI application: checks Host and Origin, and reads the records in a thread."""

    def __init__(self, catalogue: Catalogue, records: Records, security: TransportSecurityMiddleware) -> None:
        self._catalogue, self._records, self._security = catalogue, records, security

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await self._security.validate_request(request) or await self._response(request)
        await response(scope, receive, send)

    async def _response(self, request: Request) -> Response:
        caller = caller_of(request.scope) or ANYONE
        try:
            return await run_in_thread(caller.name, self._read, caller)
        except CallsExhausted as error:
            return JSONResponse({"error": str(error)}, 503)

    def _read(self, caller: Caller) -> Response:
        try:
            scope = with_toolset_scope(caller, self._catalogue.index).scope
            return JSONResponse(self._records(scope), headers={"Cache-Control": "no-store"})
        except (IndexUnavailable, IntentsUnavailable) as error:
            _log.warning("servers_read_failed", reason=str(error))
            return JSONResponse({"error": CATALOGUE_UNREACHABLE}, 503)
