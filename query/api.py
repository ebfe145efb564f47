"""The API of the service for the command line and operators: JSON at `/api` and `/toolsets`, authenticated as `/mcp`.

Reading the catalogue needs `catalog:read` and covers the caller's scope. Toolsets need `toolsets:write`, also to be
read: a toolset names tools regardless of the reader's groups. Recording and copying need `operate`, and a caller that
may see every server.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio
import structlog
from pydantic import BaseModel, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from query.backup import Kind
from query.caller import is_operator
from query.endpoint import Endpoint
from query.servers import server, servers
from query.tool import CATALOGUE_UNREACHABLE
from query.toolsets.advice import AdviceRequest, advice_for
from query.toolsets.offers import with_toolset_scope
from query.turns import run_in_thread
from query.usage.report import report_for
from shared.errors import (
    ArgumentsInvalid,
    HistoryUnavailable,
    Permanent,
    Retryable,
    ServerUnknown,
    ToolsetUnknown,
)
from shared.toolset import Toolset
from shared.validation import first_invalid_argument

if TYPE_CHECKING:
    from pathlib import Path

    from query.caller import Caller, Permission
    from query.catalogue import Catalogue
    from query.listener import HttpListener
    from query.operations import Operations
    from query.usage.usage import Usage
    from shared.catalog import Scope
    from shared.index.tools import ToolIndex

PATH = "/api"
TOOLSETS_PATH = "/toolsets"
MAX_BODY_BYTES = 16 << 20
"""A part of a backup is the largest body; definitions of servers may be long."""

_log = structlog.get_logger()

ParametersT = TypeVar("ParametersT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request: the caller with its scope, the parameters of the path, those of the query, and the body.

    The `scope` is without the tools that the policy denies, except to a caller that may operate.
    """

    caller: Caller
    scope: Scope
    path: Mapping[str, str]
    query: Mapping[str, list[str]]
    body: Any
    may_operate: bool

    def parameters(self, model: type[ParametersT]) -> ParametersT:
        """Return the last value of each parameter of the query; an empty one counts as absent."""
        return model.model_validate({name: values[-1] for name, values in self.query.items() if values[-1]})

    @property
    def names(self) -> _Names:
        """Return the names in the body, else in the query."""
        return _Names.model_validate(self.query if self.body is None else self.body)


Handler = Callable[[ApiRequest], object]
"""Returns the JSON of the response, None for a response without content."""


class _Period(BaseModel):
    period: str = "today"


class _Lines(BaseModel):
    lines: int = Field(default=50, ge=1, le=10_000)


class _Names(BaseModel):
    tools: list[str] = []
    servers: list[str] = []


class _BackupPart(BaseModel):
    kind: Kind
    documents: list[dict[str, Any]] = []


def api_routes(
    catalogue: Catalogue,
    listener: HttpListener,
    operations: Operations | None = None,
    log_directory: Path | None = None,
) -> list[Route]:
    """Return the routes of the API: the servers, savings and advice, the toolsets, and those of the operations.

    `log_directory` has the stderr of stdio servers.
    """
    is_local = listener.is_local

    def route(path: str, needs: Permission, **by_method: Handler) -> Route:
        handlers = {method.upper(): handler for method, handler in by_method.items()}
        answering = _Answering(handlers, needs, catalogue, is_local=is_local)
        return Route(path, Endpoint(listener, answering, needs=needs), methods=list(handlers))

    def one_server(asked: ApiRequest) -> object:
        lines = asked.parameters(_Lines).lines
        logs = log_directory if asked.may_operate else None
        return server(asked.path["server_id"], asked.caller, asked.scope, catalogue, logs, lines)

    def savings(asked: ApiRequest) -> object:
        period, index = asked.parameters(_Period).period, catalogue.pinned().index
        try:
            return report_for(asked.caller, asked.scope, period, _usage_of(catalogue), index).as_object()
        except ValueError as error:
            raise ArgumentsInvalid("period", str(error)) from error

    def advice(asked: ApiRequest) -> object:
        about = asked.parameters(AdviceRequest)
        found = advice_for(asked.caller, catalogue, _usage_of(catalogue), about.toolset, about.budget)
        return found.model_dump(mode="json") | {"sentences": found.sentences}

    toolsets = _Toolsets(catalogue.index)
    routes = [
        route(f"{PATH}/servers", "catalog:read", get=lambda asked: servers(asked.caller, asked.scope, catalogue)),
        route(f"{PATH}/servers/{{server_id:path}}", "catalog:read", get=one_server),
        route(f"{PATH}/savings", "catalog:read", get=savings),
        route(f"{PATH}/advice", "catalog:read", get=advice),
        route(TOOLSETS_PATH, "toolsets:write", get=toolsets.all),
        route(
            f"{TOOLSETS_PATH}/{{name}}", "toolsets:write", get=toolsets.one, put=toolsets.put, delete=toolsets.delete
        ),
    ]
    if operations is None:
        return routes
    operating = _operation_handlers(operations)
    return [*routes, *(route(PATH + path, "operate", **handlers) for path, handlers in operating.items())]


def _operation_handlers(operations: Operations) -> dict[str, dict[str, Handler]]:
    """Return the handlers of the operations by path below PATH and by method."""

    def restore(asked: ApiRequest) -> object:
        part = _BackupPart.model_validate({**asked.path, "documents": asked.body})
        return operations.restore(part.kind, part.documents)

    def record(asked: ApiRequest) -> object:
        event = asked.body
        return operations.record(
            cast("str | dict[str, Any]", event) if isinstance(event, str | dict) else json.dumps(event)
        )

    return {
        "/definitions/{server_id:path}": {
            "get": lambda asked: operations.changes(asked.path["server_id"], asked.names.tools),
            "post": lambda asked: operations.approve(asked.path["server_id"], asked.names.tools),
        },
        "/intents": {
            "get": lambda asked: operations.intents_of(asked.names.servers),
            "post": lambda asked: operations.resync(asked.names.servers),
        },
        "/events": {"post": record},
        "/dead-letters": {"get": lambda asked: operations.dead_letters(asked.parameters(_Lines).lines)},
        "/backup/{kind}": {
            "get": lambda asked: operations.backup(_BackupPart.model_validate(asked.path).kind),
            "post": restore,
        },
    }


def _usage_of(catalogue: Catalogue) -> Usage:
    if catalogue.usage is None:
        raise HistoryUnavailable("this service keeps no usage")
    return catalogue.usage


class _Toolsets:
    """The handlers of the toolsets of an index."""

    def __init__(self, index: ToolIndex) -> None:
        self._index = index

    def all(self, _: ApiRequest) -> object:
        return {"toolsets": [_object(toolset) for toolset in self._index.toolsets()]}

    def one(self, asked: ApiRequest) -> object:
        toolset = self._index.toolset(asked.path["name"])
        if toolset is None:
            raise ToolsetUnknown(f"there is no toolset {asked.path['name']}")
        return _object(toolset)

    def put(self, asked: ApiRequest) -> object:
        toolset = Toolset.model_validate(asked.body)
        if toolset.name != asked.path["name"]:
            raise ArgumentsInvalid("name", f"expected {asked.path['name']}, as in the path")
        self._index.put_toolset(toolset)
        _log.info("toolset_written", toolset=toolset.name, entries=len(toolset.tools))
        return _object(toolset)

    def delete(self, asked: ApiRequest) -> None:
        self.one(asked)
        self._index.delete_toolset(asked.path["name"])
        _log.info("toolset_deleted", toolset=asked.path["name"])


def _object(toolset: Toolset) -> dict[str, object]:
    return toolset.model_dump(mode="json", exclude_none=True)


class _Answering:
    """A handler of an `Endpoint`: reads the body, and answers in a turn of the caller."""

    def __init__(
        self, handlers: Mapping[str, Handler], needs: Permission, catalogue: Catalogue, *, is_local: bool
    ) -> None:
        self._handlers, self._needs, self._catalogue = handlers, needs, catalogue
        self._is_local = is_local

    async def __call__(self, request: Request, caller: Caller) -> Response:
        may_operate = is_operator(request, caller, is_local=self._is_local)
        if self._needs == "operate" and not may_operate:
            return _error(HTTPStatus.FORBIDDEN, f"this needs the permission {self._needs}, for all groups")
        body = bytearray()
        if request.method in ("POST", "PUT"):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    return _error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected at most {MAX_BODY_BYTES} bytes")
        answer = partial(self._answer, request, caller, bytes(body), may_operate=may_operate)
        if self._needs == "operate":  # outside the turns of searches, since it may take long
            return await anyio.to_thread.run_sync(answer)
        return await run_in_thread(caller.name, answer)

    def _answer(self, request: Request, caller: Caller, body: bytes, *, may_operate: bool) -> Response:
        handler = self._handlers.get(request.method, next(iter(self._handlers.values())))  # HEAD comes with GET
        query = {name: request.query_params.getlist(name) for name in request.query_params}
        try:
            document = json.loads(body) if body else None
        except (ValueError, RecursionError):
            return _error(HTTPStatus.BAD_REQUEST, "expected JSON")
        try:
            scoped = with_toolset_scope(caller, self._catalogue.index)
            scope = scoped.scope if may_operate else self._catalogue.scope(scoped)
            return _response(handler(ApiRequest(scoped, scope, request.path_params, query, document, may_operate)))
        except (ServerUnknown, ToolsetUnknown) as error:
            return _error(HTTPStatus.NOT_FOUND, str(error))
        except ValidationError as error:
            return _error(HTTPStatus.BAD_REQUEST, first_invalid_argument(error))
        except Permanent as error:
            return _error(HTTPStatus.BAD_REQUEST, str(error))
        except Retryable as error:
            _log.warning("api_failed", path=request.url.path, reason=str(error))
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, str(error) if may_operate else CATALOGUE_UNREACHABLE)


def _response(document: object) -> Response:
    if document is None:
        return Response(status_code=HTTPStatus.NO_CONTENT)
    # in ASCII: texts of servers may have lone surrogates
    text = json.dumps(document, separators=(",", ":"))
    return Response(text, media_type="application/json", headers={"Cache-Control": "no-store"})


def _error(status: HTTPStatus, reason: str) -> Response:
    return Response(json.dumps({"error": reason}), status, media_type="application/json")
