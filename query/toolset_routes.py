"""Toolsets over HTTP: JSON under `/toolsets`, for callers with the permission `toolsets:write`.

Reading needs it as well: a toolset names tools regardless of the reader's groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from query.endpoint import Endpoint, Handler, in_turn
from query.turns import run_in_thread
from shared.toolset import Toolset
from shared.validation import first_invalid_argument

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from query.caller import Caller, Permission
    from query.listener import HttpListener
    from shared.index.tools import ToolIndex

PATH = "/toolsets"
WRITES: Permission = "toolsets:write"
MAX_BODY_BYTES = 1 << 20

_log = structlog.get_logger()


def toolset_routes(index: ToolIndex, listener: HttpListener) -> list[Route]:
    """Return the routes that list, show, write and delete the toolsets of this index."""
    api = _Api(index)

    def route(path: str, **by_method: Handler) -> Route:
        async def handler(request: Request, caller: Caller) -> ASGIApp:
            return await by_method.get(request.method, by_method["GET"])(request, caller)  # HEAD comes with GET

        return Route(path, Endpoint(listener, handler, needs=WRITES), methods=list(by_method))

    return [
        route(PATH, GET=in_turn(api.all)),
        route(f"{PATH}/{{name}}", GET=in_turn(api.one), PUT=api.put, DELETE=in_turn(api.delete)),
    ]


class _Api:
    def __init__(self, index: ToolIndex) -> None:
        self._index = index

    def all(self, _: Request, __: Caller) -> Response:
        return JSONResponse({"toolsets": [_object(toolset) for toolset in self._index.toolsets()]})

    def one(self, request: Request, _: Caller) -> Response:
        return JSONResponse(_object(self._existing(request)))

    async def put(self, request: Request, caller: Caller) -> Response:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise HTTPException(413, f"expected at most {MAX_BODY_BYTES} bytes")
        try:
            toolset = Toolset.model_validate_json(body)
        except ValidationError as error:
            raise HTTPException(400, first_invalid_argument(error)) from error
        if toolset.name != request.path_params["name"]:
            raise HTTPException(400, f"name: expected {request.path_params['name']}, as in the path")
        await run_in_thread(caller.name, self._index.put_toolset, toolset)
        _log.info("toolset_written", toolset=toolset.name, entries=len(toolset.tools))
        return JSONResponse(_object(toolset))

    def delete(self, request: Request, _: Caller) -> Response:
        name = self._existing(request).name
        self._index.delete_toolset(name)
        _log.info("toolset_deleted", toolset=name)
        return Response(status_code=204)

    def _existing(self, request: Request) -> Toolset:
        toolset = self._index.toolset(request.path_params["name"])
        if toolset is None:
            raise HTTPException(404, f"there is no toolset {request.path_params['name']}")
        return toolset


def _object(toolset: Toolset) -> dict[str, object]:
    return toolset.model_dump(mode="json", exclude_none=True)
