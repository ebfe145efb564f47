"""Routes of sign-ins: for browsers at `/oauth` and on the page, and for the command line at `/api/sign-ins`."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import structlog
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from query.endpoint import Endpoint
from query.sign_in import CALLBACK_PATH, CLIENT_PATH, START_PATH
from query.toolsets.offers import with_toolset_scope
from query.web.page import Page, message_page, render
from query.web.routes import PATH as PAGE_PATH
from query.web.routes import PageEndpoint
from query.web.writes import checked_form
from shared.catalog import object_of
from shared.errors import CursorInvalid, CursorsUnavailable, Permanent, ServerUnknown, ToolscaleError
from shared.upstream.auth import SERVICE
from shared.upstream.hosts import is_loopback
from shared.upstream.oauth import CLIENT_NAME
from shared.upstream.tokens import in_store

if TYPE_CHECKING:
    from query.caller import Caller
    from query.catalogue import Catalogue
    from query.listener import HttpListener
    from query.sign_in import SignInFlows
    from shared.catalog import ServerRecord
    from shared.upstream.sign_ins import SignIn, SignIns

PATH = "/api/sign-ins"
BROWSER_WAITS_S = 20.0
"""Seconds that the browser waits for the tokens; the page then says that they are still awaited."""
_MAX_BODY_BYTES = 64 << 10

NOT_YOURS = "This link was used, has expired, or belongs to another caller. Ask for a new one."

Handler = Callable[[Request, "Caller"], Awaitable[Response]]

_log = structlog.get_logger()


class SignInRoutes:
    """The handlers of sign-ins, for the callers of one listener."""

    def __init__(self, catalogue: Catalogue, flows: SignInFlows, sign_ins: SignIns, listener: HttpListener) -> None:
        self._catalogue, self._flows, self._sign_ins, self._listener = catalogue, flows, sign_ins, listener

    def routes(self) -> list[Route]:
        """Return the routes."""
        page = [
            (f"{START_PATH}/{{ticket}}", self._start, "GET"),
            (CALLBACK_PATH, self._callback, "GET"),
            (f"{PAGE_PATH}/sign-in/{{server_id:path}}", self._from_page, "POST"),
        ]
        api = [
            (PATH, self._listed, "GET"),
            (PATH, self._ended, "DELETE"),
            (f"{PATH}/of/{{server_id:path}}", self._about, "GET"),
            (f"{PATH}/of/{{server_id:path}}", self._begun, "POST"),
            (f"{PATH}/returned", self._returned, "POST"),
            (f"{PATH}/outcomes/{{ticket}}", self._outcome, "GET"),
        ]
        return [
            *(Route(path, PageEndpoint(self._listener, _as_page(do)), methods=[method]) for path, do, method in page),
            *(Route(path, Endpoint(self._listener, _as_json(do)), methods=[method]) for path, do, method in api),
            Route(CLIENT_PATH, self._client, methods=["GET"]),
        ]

    async def _start(self, request: Request, caller: Caller) -> Response:
        url = await run_sync(self._flows.started, request.path_params["ticket"], caller)
        return RedirectResponse(url, headers={"Referrer-Policy": "no-referrer", "Cache-Control": "no-store"})

    async def _callback(self, request: Request, caller: Caller) -> Response:
        """Return the outcome, on a page that tells no other one its own address, which has the code."""
        ticket = await run_sync(self._flows.returned, request.url.query, caller)
        outcome = await self._flows.finished(ticket, caller, BROWSER_WAITS_S)
        title, text = {
            "signed in": ("Signed in", "You may close this window and go on where you were."),
            "failed": ("Not signed in", outcome.reason),
        }.get(
            outcome.state, ("Almost there", "The authorization server has not answered yet. You may close this window.")
        )
        page = message_page(HTTPStatus.OK, title, text, {"Referrer-Policy": "no-referrer"})
        return render(page, page_name="sign-in", caller=caller)

    async def _from_page(self, request: Request, caller: Caller) -> Response:
        await checked_form(request, caller, self._listener, self._catalogue.response_policy.kept)
        server = await self._server(request, caller)
        # an operator's page shows what the service lists
        for_service = self._flows.is_operator(request, caller)
        owner = self._flows.permitted_owner(server, request, caller, for_service=for_service)
        ticket = await self._flows.begin(server, owner, caller, self._flows.address(request))
        # a link: the browser follows no redirect from a form to another origin
        where = urlsplit(ticket.authorization_url).netloc
        text = f"{server.server_id} asks you to sign in at {where}. The link works once, within five minutes."
        page = Page(
            "message.html",
            {"title": "Sign in", "text": text, "link": ticket.link, "link_text": f"Continue at {where}"},
        )
        return render(page, page_name="sign-in", caller=caller)

    async def _listed(self, request: Request, caller: Caller) -> Response:
        """Return who is signed in where; a caller who is no operator sees his own sign-ins."""
        sees_all = self._flows.is_operator(request, caller)
        found = await in_store(lambda: list(self._sign_ins.all()))
        shown = [_object(each) for each in found if sees_all or (each.caller == caller.identity != SERVICE)]
        return JSONResponse({"sign_ins": shown})

    async def _ended(self, request: Request, caller: Caller) -> Response:
        """End the sign-ins of a server, of a caller, or of both; a caller who is no operator may end his own."""
        server_id, owner = request.query_params.get("server"), request.query_params.get("caller")
        may_end_any = self._flows.is_operator(request, caller)
        if "service" in request.query_params:
            owner = SERVICE
        elif owner is None and server_id is not None:
            owner = self._flows.owner(await self._server(request, caller, server_id), caller)
        if not (may_end_any or (owner and owner == caller.identity)):
            return _error(HTTPStatus.FORBIDDEN, "this needs the permission operate, for all groups")

        def end() -> list[str]:
            of_caller = (each for each in self._sign_ins.all() if each.caller == owner)
            wanted = [each.server_id for each in of_caller if server_id in (None, each.server_id)]
            return [each for each in wanted if self._flows.end(each, owner or SERVICE)]

        ended = await in_store(end)
        for each in ended:
            _log.info("signed_out", server=each, caller=caller.name, owner=owner or "service")
        return JSONResponse({"ended": ended})

    async def _about(self, request: Request, caller: Caller) -> Response:
        """Return whose sign-in the caller needs, and the port to which the browser has to return, if there is one."""
        server = await self._server(request, caller)
        return JSONResponse(
            {
                "caller": self._flows.owner(server, caller) or None,
                "callback_port": self._flows.client(server).callback_port,
            }
        )

    async def _begun(self, request: Request, caller: Caller) -> Response:
        server = await self._server(request, caller)
        body = await _body(request)
        for_service = body.get("service") is True
        owner = self._flows.permitted_owner(server, request, caller, for_service=for_service)
        redirect_url = str(body.get("redirect_url", ""))
        parts = urlsplit(redirect_url)
        if parts.scheme != "http" or not is_loopback(parts.hostname or "") or not parts.path.strip("/"):
            return _error(HTTPStatus.BAD_REQUEST, "redirect_url: expected a path on loopback")
        scopes = str(body.get("scopes") or "") or None
        ticket = await self._flows.begin(server, owner, caller, redirect_url, scopes=scopes)
        return JSONResponse({"ticket": ticket.name, "authorization_url": ticket.authorization_url})

    async def _returned(self, request: Request, caller: Caller) -> Response:
        query = urlsplit(str((await _body(request)).get("url", ""))).query
        return JSONResponse({"ticket": await run_sync(self._flows.returned, query, caller)})

    async def _outcome(self, request: Request, caller: Caller) -> Response:
        outcome = await run_sync(self._flows.outcome, request.path_params["ticket"], caller)
        return JSONResponse({"state": outcome.state, "reason": outcome.reason})

    async def _client(self, request: Request) -> Response:
        """Return the client id metadata document, whose URL is the client id of this service."""
        if urlsplit(self._listener.public_address or "").scheme != "https":
            return _error(HTTPStatus.NOT_FOUND, "this service has no public https URL")
        address = self._flows.address(request)
        return JSONResponse(
            {
                "client_id": address + CLIENT_PATH,
                "client_name": CLIENT_NAME,
                "redirect_uris": [address + CALLBACK_PATH],
                "grant_types": ["authorization_code", "refresh_token"],
                "response_types": ["code"],
                "token_endpoint_auth_method": "none",
            }
        )

    async def _server(self, request: Request, caller: Caller, server_id: str | None = None) -> ServerRecord:
        """Return the record of a server in the caller's scope.

        Raises:
            ServerUnknown: there is none.
        """
        name = server_id or request.path_params["server_id"]

        def found() -> ServerRecord:
            ledger, scope = self._catalogue.ledger, with_toolset_scope(caller, self._catalogue.index).scope
            ledger.refresh()
            record, of_any_status = ledger.record(name), replace(scope, status=None)
            if record is None or not of_any_status.admits(record):
                raise ServerUnknown.near(name, (each.server_id for each in ledger.known(of_any_status)))
            return record

        return await run_sync(found)


def _iso(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


async def _body(request: Request) -> dict[str, Any]:
    text = await request.body()
    return object_of(json.loads(text) if 0 < len(text) <= _MAX_BODY_BYTES else {})


def _as_json(handler: Handler) -> Handler:
    """Return a handler whose errors are JSON."""

    async def answer(request: Request, caller: Caller) -> Response:
        try:
            response = await handler(request, caller)
        except ServerUnknown as error:
            return _error(HTTPStatus.NOT_FOUND, str(error))
        except ValueError:
            return _error(HTTPStatus.BAD_REQUEST, "expected JSON")
        except CursorInvalid:
            return _error(HTTPStatus.BAD_REQUEST, NOT_YOURS)
        except ToolscaleError as error:
            is_permanent = isinstance(error, Permanent)
            return _error(HTTPStatus.BAD_REQUEST if is_permanent else HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        response.headers["Cache-Control"] = "no-store"
        return response

    return answer


def _as_page(handler: Handler) -> Handler:
    """Return a handler whose errors are pages."""

    async def answer(request: Request, caller: Caller) -> Response:
        try:
            return await handler(request, caller)
        except CursorInvalid:
            status, text = HTTPStatus.NOT_FOUND, NOT_YOURS
        except (CursorsUnavailable, ToolscaleError) as error:
            status, text = HTTPStatus.SERVICE_UNAVAILABLE, f"{error}."
        return render(message_page(status, "Not signed in", text), page_name="sign-in", caller=caller)

    return answer


def _object(sign_in: SignIn) -> dict[str, object]:
    return {
        "server_id": sign_in.server_id,
        "caller": sign_in.caller or None,
        "since": _iso(sign_in.since),
        "expires_at": _iso(sign_in.expires_at),
        "scope": sign_in.tokens.scope if sign_in.tokens else None,
    }


def _error(status: HTTPStatus, reason: str) -> Response:
    return JSONResponse({"error": reason}, status)
