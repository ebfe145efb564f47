"""`GET /servers`: the records that only a process of both sides has, for `toolscale ls --url`.

A caller gets the servers of its groups and its toolset. A query service without these records has no such route.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from query.endpoint import Endpoint, in_turn
from query.toolsets.active import with_toolset_scope

if TYPE_CHECKING:
    from query.caller import Caller
    from query.catalogue import Catalogue
    from query.listener import HttpListener
    from shared.catalog import Scope

PATH = "/servers"

Records = Callable[["Scope"], dict[str, Any]]
"""Return the records of the servers in a scope as JSON."""


def servers_route(catalogue: Catalogue, listener: HttpListener, records: Records) -> Route:
    """Return the route, with the authentication of this listener."""

    def servers(_: Request, caller: Caller) -> Response:
        scope = with_toolset_scope(caller, catalogue.index).scope
        return JSONResponse(records(scope), headers={"Cache-Control": "no-store"})

    return Route(PATH, Endpoint(listener, in_turn(servers)), methods=["GET"])
