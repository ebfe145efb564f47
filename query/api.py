"""The API of the service for the command line, JSON under `/api`, with the authentication of `/mcp`.

Reading needs `catalog:read` and covers the caller's scope. Recording and copying need `operate`, and a caller that may
see every server.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import anyio
import structlog
from pydantic import BaseModel, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from query.backup import Kind
from query.caller import ANYONE
from query.endpoint import Endpoint
from query.servers import server, servers
from query.tool import CATALOGUE_UNREACHABLE
from query.toolsets.advice import advice_for
from query.toolsets.offers import with_toolset_scope
from query.turns import run_in_thread
from query.usage.report import is_unrestricted, report_for
from shared.errors import (
    ArgumentsInvalid,
    HistoryUnavailable,
    Permanent,
    Retryable,
    ServerUnknown,
    ToolsetUnknown,
)
from shared.toolset import ToolsetName
from shared.upstream.hosts import is_loopback
from shared.validation import first_invalid_argument

if TYPE_CHECKING:
    from pathlib import Path

    from query.caller import Caller, Permission
    from query.catalogue import Catalogue
    from query.listener import HttpListener
    from query.operations import Operations
    from shared.intents.intents import Intents

PATH = "/api"
MAX_BODY_BYTES = 16 << 20
"""A part of a backup is the largest body; definitions of servers may be long."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request of the API: the caller with its scope, the parameters of the path, and those of query and body."""

    caller: Caller
    path: Mapping[str, str]
    given: Any
    may_operate: bool


Handler = Callable[[ApiRequest], object]
"""Returns the JSON of the response."""


def api_routes(
    catalogue: Catalogue,
    listener: HttpListener,
    intents: Intents | None = None,
    operations: Operations | None = None,
    log_directory: Path | None = None,
) -> list[Route]:
    """Return the routes of the API: `/api/servers`, `/api/savings`, `/api/advice`, and those of the operations.

    Without intents, servers have no next reconciliation. `log_directory` has the stderr of stdio servers.
    """
    is_local = is_loopback(listener.server_socket.getsockname()[0])
    reads = _Reads(catalogue, intents, log_directory)

    def route(path: str, needs: Permission, **handlers: Handler) -> Route:
        by_method = {method.upper(): handler for method, handler in handlers.items()}
        answering = _Answering(by_method, needs, catalogue, is_local=is_local)
        return Route(PATH + path, Endpoint(listener, answering, needs=needs), methods=list(by_method))

    routes = [
        route("/servers", "catalog:read", get=reads.servers),
        route("/servers/{server_id:path}", "catalog:read", get=reads.server),
        route("/savings", "catalog:read", get=reads.savings),
        route("/advice", "catalog:read", get=reads.advice),
    ]
    if operations is None:
        return routes
    writes = _Writes(operations)
    return [
        *routes,
        route("/definitions/{server_id:path}", "operate", get=writes.changes, post=writes.approve),
        route("/intents", "operate", get=writes.intents, post=writes.resync),
        route("/events", "operate", post=writes.record),
        route("/dead-letters", "operate", get=writes.dead_letters),
        route("/backup/{kind}", "operate", get=writes.backup, post=writes.restore),
    ]


class _Answering:
    """A handler of an `Endpoint`: reads the body, and answers in a turn of the caller."""

    def __init__(
        self, handlers: Mapping[str, Handler], needs: Permission, catalogue: Catalogue, *, is_local: bool
    ) -> None:
        self._handlers, self._needs, self._catalogue = handlers, needs, catalogue
        self._is_local = is_local

    async def __call__(self, request: Request, caller: Caller) -> Response:
        if self._needs != "operate":
            return await run_in_thread(caller.name, self._answer, request, caller, b"")
        if not self._may_operate(caller):
            return _error(HTTPStatus.FORBIDDEN, f"this needs the permission {self._needs}, for all groups")
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                return _error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected at most {MAX_BODY_BYTES} bytes")
        # outside the turns of searches, since it may take long
        return await anyio.to_thread.run_sync(self._answer, request, caller, bytes(body))

    def _may_operate(self, caller: Caller) -> bool:
        # where callers are not authenticated, only this machine may operate
        return "operate" in caller.permissions and is_unrestricted(caller) and (self._is_local or caller is not ANYONE)

    def _answer(self, request: Request, caller: Caller, body: bytes) -> Response:
        handler = self._handlers.get(request.method, next(iter(self._handlers.values())))  # HEAD comes with GET
        query = {name: request.query_params.getlist(name) for name in request.query_params}
        try:
            given = json.loads(body) if body else query
        except (ValueError, RecursionError):
            return _error(HTTPStatus.BAD_REQUEST, "expected JSON")
        try:
            scoped = with_toolset_scope(caller, self._catalogue.index)
            return _json(handler(ApiRequest(scoped, request.path_params, given, self._may_operate(caller))))
        except (ServerUnknown, ToolsetUnknown) as error:
            return _error(HTTPStatus.NOT_FOUND, str(error))
        except ValidationError as error:
            return _error(HTTPStatus.BAD_REQUEST, first_invalid_argument(error))
        except Permanent as error:
            return _error(HTTPStatus.BAD_REQUEST, str(error))
        except Retryable as error:
            _log.warning("api_failed", path=request.url.path, reason=str(error))
            reason = str(error) if self._may_operate(caller) else CATALOGUE_UNREACHABLE
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, reason)


class _Reads:
    """The handlers that read, within the caller's scope."""

    def __init__(self, catalogue: Catalogue, intents: Intents | None, log_directory: Path | None) -> None:
        self._catalogue, self._intents, self._log_directory = catalogue, intents, log_directory

    def servers(self, request: ApiRequest) -> object:
        return servers(request.caller, self._catalogue, self._intents)

    def server(self, request: ApiRequest) -> object:
        lines = _Lines.model_validate(_single(request.given)).lines
        server_id = request.path["server_id"]
        log_directory = self._log_directory if request.may_operate else None
        return server(server_id, request.caller, self._catalogue, self._intents, log_directory, lines)

    def savings(self, request: ApiRequest) -> object:
        period = _single(request.given).get("period", "today")
        if self._catalogue.usage is None:
            raise HistoryUnavailable("this service keeps no usage")
        try:
            index = self._catalogue.pinned().index
            return report_for(request.caller, period, self._catalogue.usage, index).as_object()
        except ValueError as error:
            raise ArgumentsInvalid("period", str(error)) from error

    def advice(self, request: ApiRequest) -> object:
        asked = _Asked.model_validate(_single(request.given))
        if self._catalogue.usage is None:
            raise HistoryUnavailable("this service keeps no usage")
        found = advice_for(request.caller, self._catalogue, self._catalogue.usage, asked.toolset, asked.budget)
        return found.model_dump(mode="json") | {"sentences": found.sentences}


class _Writes:
    """The handlers of the operations."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def changes(self, request: ApiRequest) -> object:
        return self._operations.changes(request.path["server_id"], _Names.model_validate(request.given).tools)

    def approve(self, request: ApiRequest) -> object:
        return self._operations.approve(request.path["server_id"], _Names.model_validate(request.given).tools)

    def intents(self, request: ApiRequest) -> object:
        return self._operations.intents_of(_Names.model_validate(request.given).servers)

    def resync(self, request: ApiRequest) -> object:
        return self._operations.resync(_Names.model_validate(request.given).servers)

    def record(self, request: ApiRequest) -> object:
        event = request.given
        return self._operations.record(
            cast("str | dict[str, Any]", event) if isinstance(event, str | dict) else json.dumps(event)
        )

    def dead_letters(self, request: ApiRequest) -> object:
        return self._operations.dead_letters(_Lines.model_validate(_single(request.given)).lines)

    def backup(self, request: ApiRequest) -> object:
        return self._operations.backup(_BackupPart.model_validate(request.path).kind)

    def restore(self, request: ApiRequest) -> object:
        part = _BackupPart.model_validate({**request.path, "documents": request.given})
        return self._operations.restore(part.kind, part.documents)


class _Lines(BaseModel):
    lines: int = Field(default=50, ge=1, le=10_000)


class _Asked(BaseModel):
    toolset: ToolsetName | None = None
    budget: int | None = Field(default=None, ge=1, le=10**9)


class _Names(BaseModel):
    tools: list[str] = []
    servers: list[str] = []


class _BackupPart(BaseModel):
    kind: Kind
    documents: list[dict[str, Any]] = []


def _single(given: Any) -> dict[str, str]:
    """Return the last value of each parameter of the query; an empty one counts as absent."""
    values = cast("dict[str, list[str]]", given) if isinstance(given, dict) else {}
    return {name: of_name[-1] for name, of_name in values.items() if of_name and of_name[-1]}


def _json(document: object) -> Response:
    # in ASCII: texts of servers may have lone surrogates
    text = json.dumps(document, separators=(",", ":"))
    return Response(text, media_type="application/json", headers={"Cache-Control": "no-store"})


def _error(status: HTTPStatus, reason: str) -> Response:
    return Response(json.dumps({"error": reason}), status, media_type="application/json")
