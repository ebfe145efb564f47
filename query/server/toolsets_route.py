"""Toolsets over HTTP: JSON under `/toolsets`, for callers with the permission `toolsets:write`.

Reading needs it as well: a toolset names tools regardless of the reader's groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio
import structlog
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from query.auth.http import caller_of, guarded
from query.caller import Permission
from query.tools.tool import CATALOGUE_UNREACHABLE
from shared.errors import IndexUnavailable
from shared.toolset import Toolset
from shared.validation import first_invalid_argument

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from query.auth.authentication import Authentication
    from shared.index.tools import ToolIndex

PATH = "/toolsets"
WRITES: Permission = "toolsets:write"
MAX_BODY_BYTES = 1 << 20

_log = structlog.get_logger()

RouteHandler = Callable[[Request, bytes], Response]


def toolset_routes(
    index: ToolIndex, authentication: Authentication | None, security: TransportSecuritySettings
) -> list[Route]:
    """Return the routes that list, show, write and delete the toolsets of this index."""
    api = _Api(index)

    def route(path: str, **handlers: RouteHandler) -> Route:
        app = _Endpoint({method.upper(): answer for method, answer in handlers.items()}, security)
        checked = guarded(app, authentication, needs=WRITES) if authentication else app
        return Route(path, checked, methods=[method.upper() for method in handlers])

    return [route(PATH, get=api.listed), route(f"{PATH}/{{name}}", get=api.shown, put=api.put, delete=api.delete)]


class ExistingToolsets:
    """ASGI: passes requests on, and returns 404 where the path names a toolset that does not exist.

    A caller whose token is for another toolset does not learn which toolsets exist.
    """

    def __init__(self, app: ASGIApp, index: ToolIndex, security: TransportSecuritySettings) -> None:
        self._app = app
        self._index = index
        self._security = TransportSecurityMiddleware(security)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Return the app's response, or 404."""
        request = Request(scope, receive)
        is_missing = "toolset" in request.path_params and await self._is_missing(request)
        await (_missing(request) if is_missing else self._app)(scope, receive, send)

    async def _is_missing(self, request: Request) -> bool:
        caller, name = caller_of(request.scope), request.path_params["toolset"]
        is_bound = caller is not None and caller.toolset not in (None, name)
        if is_bound or await self._security.validate_request(request):
            return False  # the app refuses it
        try:
            return await anyio.to_thread.run_sync(self._index.toolset, name) is None
        except IndexUnavailable:
            return False  # the app returns the error


class _Endpoint:
    """ASGI: checks Host and Origin, reads the body, and answers in a thread."""

    def __init__(self, handlers: dict[str, RouteHandler], security: TransportSecuritySettings) -> None:
        self._handlers = handlers
        self._security = TransportSecurityMiddleware(security)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._response(Request(scope, receive))
        await response(scope, receive, send)

    async def _response(self, request: Request) -> Response:
        refused = await self._security.validate_request(request)
        if refused:
            return refused
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                return _error(413, f"expected at most {MAX_BODY_BYTES} bytes")
        # HEAD comes with GET
        handler = self._handlers.get(request.method, self._handlers["GET"])
        try:
            return await anyio.to_thread.run_sync(handler, request, body)
        except IndexUnavailable as error:
            _log.warning("toolset_read_failed", reason=str(error))
            return _error(503, CATALOGUE_UNREACHABLE)


class _Api:
    def __init__(self, index: ToolIndex) -> None:
        self._index = index

    def listed(self, _: Request, __: bytes) -> Response:
        return JSONResponse({"toolsets": [_object(toolset) for toolset in self._index.toolsets()]})

    def shown(self, request: Request, _: bytes) -> Response:
        toolset = self._index.toolset(request.path_params["name"])
        return _missing(request) if toolset is None else JSONResponse(_object(toolset))

    def put(self, request: Request, body: bytes) -> Response:
        try:
            toolset = Toolset.model_validate_json(body)
        except ValidationError as error:
            return _error(400, first_invalid_argument(error))
        if toolset.name != request.path_params["name"]:
            return _error(400, f"name: expected {request.path_params['name']}, as in the path")
        self._index.put_toolset(toolset)
        _log.info("toolset_written", toolset=toolset.name, entries=len(toolset.tools))
        return JSONResponse(_object(toolset))

    def delete(self, request: Request, _: bytes) -> Response:
        name = request.path_params["name"]
        if self._index.toolset(name) is None:
            return _missing(request)
        self._index.delete_toolset(name)
        _log.info("toolset_deleted", toolset=name)
        return Response(status_code=204)


def _object(toolset: Toolset) -> dict[str, object]:
    return toolset.model_dump(mode="json", exclude_none=True)


def _missing(request: Request) -> Response:
    (name,) = request.path_params.values()
    return _error(404, f"there is no toolset {name}")


def _error(status: int, reason: str) -> Response:
    return JSONResponse({"error": reason}, status)
