"""Routes of the page: `/ui` and below, and a redirect from `/`. Each shows only the caller's scope."""

from __future__ import annotations

import re
import time
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Route
from typing_extensions import override

from query.auth.authentication import bearer_or_basic_token
from query.caller import is_operator
from query.endpoint import LEAST, Endpoint
from query.servers import ServerTables
from query.toolsets.offers import Offers, with_toolset_scope
from query.turns import run_in_thread
from query.web.changes import accept, retry
from query.web.feed import feed
from query.web.find import find
from query.web.money import price_of
from query.web.overview import overview
from query.web.page import HEADERS, HTML, NO_MEANS, Means, Page, PageRequest, View, message_page, render
from query.web.tool import schema_of, shown_tool, tool
from query.web.tool_map import LargestTools
from query.web.tools import leave_out, left_out, tools
from query.web.trial import trial
from query.web.views import advice, history, server, servers
from query.web.writes import checked_form, page_token

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import ASGIApp

    from query.caller import Caller, Permission
    from query.catalogue import Catalogue
    from query.listener import HttpListener
    from query.web.changes import Change
    from query.web.writes import Form

PATH = "/ui"
STATIC = Path(__file__).with_name("static")
# One hour: a new release uses another URL for its style sheet.
STATIC_HEADERS = HEADERS | {"Cache-Control": "public, max-age=3600"}

# The browser sends the password in UTF-8, independent of the page's encoding (RFC 7617).
CHALLENGE = {"WWW-Authenticate": 'Basic realm="Toolscale", charset="UTF-8"'}

_PLAIN_PATH = re.compile(r"(?:/[A-Za-z0-9._~-]{1,100}){1,10}")

_log = structlog.get_logger()


def page_routes(catalogue: Catalogue, listener: HttpListener, means: Means = NO_MEANS) -> list[Route]:
    """Return the routes of the page, with the authentication of this listener."""
    site = _Site(catalogue, listener, means)
    page, write = site.page, site.write
    return [
        *(Route(path, _to_page, methods=["GET"]) for path in ("/", f"{PATH}/")),
        *(Route(f"{PATH}/static/{file.name}", _static(file), methods=["GET"]) for file in STATIC.iterdir()),
        page("", "overview", overview),
        page("/feed", "feed", feed),
        page("/advice", "advice", advice),
        page("/find", "find", find),
        page("/history", "history", history),
        page("/servers", "servers", servers),
        page("/servers/{server_id:path}", "server", server),
        page("/tools", "tools", tools),
        page("/tools/{name:path}", "tool", tool),
        page("/leave-out", "leave-out", leave_out),
        site.trials("/tools/{name:path}"),
        write("/leave-out", LEAST, left_out),
        write("/accept/{server_id:path}", "operate", accept),
        write("/retry/{server_id:path}", "operate", retry),
    ]


class _Site:
    """The routes of one listener. A page is read in a turn of its caller, and a change is made outside the turns."""

    def __init__(self, catalogue: Catalogue, listener: HttpListener, means: Means) -> None:
        self._catalogue, self._listener, self._means = catalogue, listener, means
        self._largest, self._tables = LargestTools(catalogue), ServerTables(catalogue)
        self._offers, self._kept = Offers(catalogue), catalogue.response_policy.kept
        self._is_local = listener.is_local

    def page(self, path: str, name: str, view: View) -> Route:
        """Return the route of a page."""

        def shown(request: Request, caller: Caller) -> Response:
            return self._rendered(view(self._asked(request, caller)), name, caller)

        async def handler(request: Request, caller: Caller) -> Response:
            started_s = time.perf_counter()
            response = await run_in_thread(caller.name, shown, request, caller)
            took_ms = round((time.perf_counter() - started_s) * 1e3, 2)
            if name == "feed":  # a page that is open reads it every few seconds
                return response
            _log.info("page_served", page=name, caller=caller.name, status=response.status_code, took_ms=took_ms)
            return response

        return Route(PATH + path, PageEndpoint(self._listener, handler), methods=["GET"])

    def write(self, path: str, needs: Permission, change: Change) -> Route:
        """Return the route of the forms that make this change."""

        def changed(request: Request, caller: Caller, form: Form) -> Response:
            return self._rendered(change(self._asked(request, caller), form), "change", caller)

        async def handler(request: Request, caller: Caller) -> Response:
            if needs == "operate" and not is_operator(request, caller, is_local=self._is_local):
                raise HTTPException(403, "This needs the permission operate, for all groups")
            form = await checked_form(request, caller, self._listener, self._kept)
            response = await anyio.to_thread.run_sync(changed, request, caller, form)
            _log.info("page_changed", path=request.url.path, caller=caller.name, status=response.status_code)
            return response

        return Route(PATH + path, PageEndpoint(self._listener, handler, needs=needs), methods=["POST"])

    def trials(self, path: str) -> Route:
        """Return the route of the forms that call a tool."""

        async def handler(request: Request, caller: Caller) -> Response:
            form = await checked_form(request, caller, self._listener, self._kept)
            asked = await anyio.to_thread.run_sync(self._asked, request, caller)
            shown = await run_in_thread(caller.name, shown_tool, asked)
            outcome = None
            if shown is not None:
                schema, encoding = schema_of(shown.tool.definition), self._catalogue.encoding
                outcome = await trial(request, form, shown.serving.name, schema, encoding)
            page = await run_in_thread(caller.name, tool, asked, outcome)
            return await anyio.to_thread.run_sync(self._rendered, page, "tool", caller)

        return Route(PATH + path, PageEndpoint(self._listener, handler, needs="tools:call"), methods=["POST"])

    def _asked(self, request: Request, caller: Caller) -> PageRequest:
        scoped = with_toolset_scope(caller, self._catalogue.index)
        may_operate = is_operator(request, caller, is_local=self._is_local)
        return PageRequest(
            scoped,
            scoped.scope if may_operate else self._catalogue.scope(scoped),
            self._catalogue,
            request.path_params,
            dict(request.query_params),
            self._listener.public_address or str(request.base_url).rstrip("/"),
            self._offers,
            may_operate,
            self._means,
            self._largest,
            self._tables,
            request.query_params.getlist("tool"),
            price_of(request.query_params, request.cookies),
        )

    def _rendered(self, found: Page | Response, name: str, caller: Caller) -> Response:
        if isinstance(found, Response):
            return found
        token = cache(partial(page_token, caller, self._kept))  # one for all forms of the page
        return render(found, token, page_name=name, caller=caller)


class PageEndpoint(Endpoint):
    """An endpoint for browsers: the token may be the password of HTTP Basic, and errors are pages.

    Every request is authenticated, so that a withdrawn token is refused at once.
    """

    @override
    async def _answer(self, request: Request) -> ASGIApp:
        """Return the page, with the links of a service that a proxy has below a path."""
        answer = await super()._answer(request)
        prefix = _prefix(request)
        if prefix and isinstance(answer, Response) and answer.headers.get("location", "").startswith(PATH):
            answer.headers["location"] = prefix + answer.headers["location"]
        if prefix and isinstance(answer, Response) and answer.media_type == HTML:
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
