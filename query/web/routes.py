"""Routes of the page: `/ui` and below, and a redirect from `/`. Each shows only the caller's scope."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Route
from typing_extensions import override

from query.auth.authentication import bearer_or_basic_token
from query.caller import is_operator
from query.endpoint import Endpoint
from query.toolsets.offers import Offers, with_toolset_scope
from query.turns import run_in_thread
from query.web.page import HEADERS, HTML, PageRequest, View, message_page, render
from query.web.views import advice, find, history, overview, server, servers, tool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.exceptions import HTTPException
    from starlette.types import ASGIApp

    from query.caller import Caller
    from query.catalogue import Catalogue
    from query.listener import HttpListener

PATH = "/ui"
STATIC = Path(__file__).with_name("static")
# One hour: a new release uses another URL for its style sheet.
STATIC_HEADERS = HEADERS | {"Cache-Control": "public, max-age=3600"}

# The browser sends the password in UTF-8, independent of the page's encoding (RFC 7617).
CHALLENGE = {"WWW-Authenticate": 'Basic realm="Toolscale", charset="UTF-8"'}

_PLAIN_PATH = re.compile(r"(?:/[A-Za-z0-9._~-]{1,100}){1,10}")

_log = structlog.get_logger()


def page_routes(catalogue: Catalogue, listener: HttpListener) -> list[Route]:
    """Return the routes of the page, with the authentication of this listener."""
    offers, is_local = Offers(catalogue), listener.is_local

    def page(path: str, name: str, view: View) -> Route:
        def shown(request: Request, caller: Caller) -> Response:
            scoped = with_toolset_scope(caller, catalogue.index)
            address = listener.public_address or str(request.base_url).rstrip("/")
            query = dict(request.query_params)
            may_operate = is_operator(request, caller, is_local=is_local)
            scope = scoped.scope if may_operate else catalogue.scope(scoped)
            found = view(PageRequest(scoped, scope, catalogue, request.path_params, query, address, offers))
            return found if isinstance(found, Response) else render(found, page_name=name, caller=caller)

        async def handler(request: Request, caller: Caller) -> Response:
            started_s = time.perf_counter()
            response = await run_in_thread(caller.name, shown, request, caller)
            took_ms = round((time.perf_counter() - started_s) * 1e3, 2)
            _log.info("page_served", page=name, caller=caller.name, status=response.status_code, took_ms=took_ms)
            return response

        return Route(PATH + path, PageEndpoint(listener, handler), methods=["GET"])

    return [
        *(Route(path, _to_page, methods=["GET"]) for path in ("/", f"{PATH}/")),
        *(Route(f"{PATH}/static/{file.name}", _static(file), methods=["GET"]) for file in STATIC.iterdir()),
        page("", "overview", overview),
        page("/advice", "advice", advice),
        page("/find", "find", find),
        page("/history", "history", history),
        page("/servers", "servers", servers),
        page("/servers/{server_id:path}", "server", server),
        page("/tools/{name:path}", "tool", tool),
    ]


class PageEndpoint(Endpoint):
    """An endpoint for browsers: the token may be the password of HTTP Basic, and errors are pages.

    Every request is authenticated, so that a withdrawn token is refused at once.
    """

    @override
    async def _answer(self, request: Request) -> ASGIApp:
        """Return the page, with the links of a service that a proxy has below a path."""
        answer = await super()._answer(request)
        if (prefix := _prefix(request)) and isinstance(answer, Response) and answer.media_type == HTML:
            # no text of a page has this: a quote in it is escaped
            answer.body = bytes(answer.body).replace(b'="/ui', f'="{prefix}/ui'.encode())
            answer.headers["content-length"] = str(len(answer.body))
        return answer

    @override
    def token(self, authorization: str) -> str | None:
        return bearer_or_basic_token(authorization)

    @override
    def challenge(self, error: str, description: str) -> dict[str, str]:
        return CHALLENGE if error == "invalid_token" else {}

    @override
    def error(self, request: Request, error: HTTPException) -> Response:
        title = {401: "Sign in", 403: "Not allowed", 503: "Not now"}.get(error.status_code, "Error")
        text = f"{error.detail.rstrip('.')}."
        if error.status_code == 401:  # noqa: PLR2004  # HTTP's
            text = "Give any user name, and your Toolscale token as the password."
        caller = getattr(request.state, "caller", None)
        page = message_page(error.status_code, title, text, error.headers)
        return render(page, page_name="error" if caller else "", caller=caller)


def _prefix(request: Request) -> str:
    """Return the path that a proxy has removed, empty without one: no other text belongs into a link."""
    prefix = request.headers.get("x-forwarded-prefix", "").rstrip("/")
    return prefix if _PLAIN_PATH.fullmatch(prefix) else ""


async def _to_page(request: Request) -> RedirectResponse:
    return RedirectResponse(_prefix(request) + PATH)


def _static(file: Path) -> Callable[[Request], Awaitable[Response]]:
    async def serve(_: Request) -> FileResponse:
        return FileResponse(file, headers=STATIC_HEADERS)

    return serve
