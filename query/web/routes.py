"""Routes of the page: `/ui` and below, and a redirect from `/`. Each shows only the caller's scope."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from mcp.server.transport_security import TransportSecurityMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Route

from query.auth.http import AuthFailureLog
from query.server.http import MCP_PATH, security_of
from query.toolsets.offers import with_toolset_scope
from query.turns import run_in_thread
from query.web.page import Page, PageRequest, View, message_page
from query.web.rendering import HEADERS, render
from query.web.signin import SignIn
from query.web.views.advice import advice
from query.web.views.find import find
from query.web.views.history import history
from query.web.views.overview import overview
from query.web.views.servers import server, servers
from query.web.views.tools import tool
from shared.errors import CallsExhausted, IndexUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Receive, Scope, Send

    from query.caller import Caller
    from query.catalogue import Catalogue
    from query.server.listener import HttpListener

PATH = "/ui"
STATIC = Path(__file__).with_name("static")
# One hour: a new release uses another URL for its style sheet.
STATIC_HEADERS = HEADERS | {"Cache-Control": "public, max-age=3600"}

_log = structlog.get_logger()


def page_routes(catalogue: Catalogue, listener: HttpListener) -> list[Route]:
    """Return the routes of the page, with the authentication of this listener."""
    security = TransportSecurityMiddleware(security_of(listener))
    sign_in = SignIn(listener.authentication, AuthFailureLog())

    def page(path: str, name: str, view: View) -> Route:
        endpoint = _PageEndpoint(name, view, catalogue, sign_in, security, _public_address(listener))
        return Route(PATH + path, endpoint, methods=["GET"])

    return [
        Route("/", _to_page, methods=["GET"]),
        *(Route(f"{PATH}/static/{file.name}", _static(file), methods=["GET"]) for file in STATIC.iterdir()),
        page("", "overview", overview),
        page("/advice", "advice", advice),
        page("/find", "find", find),
        page("/history", "history", history),
        page("/servers", "servers", servers),
        page("/servers/{server_id:path}", "server", server),
        page("/tools/{name:path}", "tool", tool),
    ]


def _public_address(listener: HttpListener) -> str:
    """Return the public URL without the path of MCP; empty if it is not set."""
    return (listener.public_url or "").rstrip("/").removesuffix(MCP_PATH)


class _PageEndpoint:
    """ASGI application: checks Host and caller, and renders the page in a thread."""

    def __init__(
        self,
        name: str,
        view: View,
        catalogue: Catalogue,
        sign_in: SignIn,
        security: TransportSecurityMiddleware,
        public_address: str,
    ) -> None:
        self._name, self._view, self._catalogue = name, view, catalogue
        self._sign_in, self._security, self._public_address = sign_in, security, public_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await self._security.validate_request(request) or await self._response(request)
        await response(scope, receive, send)

    async def _response(self, request: Request) -> Response:
        started_s = time.perf_counter()
        caller = await self._sign_in.caller(request)
        if isinstance(caller, Page):
            return render(caller, page_name="", caller=None)
        try:
            response = await run_in_thread(caller.name, self._render, request, caller)
        except CallsExhausted as error:
            response = render(message_page(503, "Not now", f"{error}."), page_name=self._name, caller=caller)
        took_ms = round((time.perf_counter() - started_s) * 1e3, 2)
        _log.info("page_served", page=self._name, caller=caller.name, status=response.status_code, took_ms=took_ms)
        return response

    def _render(self, request: Request, known: Caller) -> Response:
        try:
            caller = with_toolset_scope(known, self._catalogue.index)
            address = self._public_address or str(request.base_url).rstrip("/")
            query = dict(request.query_params)
            page_request = PageRequest(caller, self._catalogue, request.path_params, query, address)
            page = self._view(page_request)
        except IndexUnavailable as error:
            _log.warning("page_failed", page=self._name, reason=str(error))
            page = message_page(503, "Not now", "The tool catalogue cannot be reached at the moment.")
        return page if isinstance(page, Response) else render(page, page_name=self._name, caller=known)


async def _to_page(_: Request) -> RedirectResponse:
    return RedirectResponse(PATH)


def _static(file: Path) -> Callable[[Request], Awaitable[Response]]:
    async def serve(_: Request) -> FileResponse:
        return FileResponse(file, headers=STATIC_HEADERS)

    return serve
