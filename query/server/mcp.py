"""The MCP server of the read side: lists the tools we offer and hands each call to the one it names."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import structlog
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import validate_mcp_param_headers
from mcp.types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request

from query.caller import ANYONE, Caller
from query.metrics import QueryMetrics
from query.paging.policy import ResponsePolicy
from query.server.paging import handle
from query.server.tools_list import page_of_tools
from query.tools.registry import builtin_tools
from query.tools.tool import CATALOGUE_UNREACHABLE, CURSOR_STORE_UNAVAILABLE, ToolCallContext, ToolHandler, error_result
from query.tools.toolset_tools import NO_DIRECT_TOOLS, DirectTools, Toolsets, toolsets_of
from query.toolsets.active import with_path_toolset
from shared.errors import CursorInvalid, CursorsUnavailable, IndexUnavailable

if TYPE_CHECKING:
    from mcp.server import Server
    from mcp.server.context import ServerRequestContext
    from mcp.types import Tool

    from query.caller import Caller
    from query.calling.upstreams import Upstreams
    from query.catalogue import Catalogue


RequestContext = ServerRequestContext[Any]
T = TypeVar("T")

# What a toolset's tools are counted as: their own names are as many as there are.
DIRECT = "direct"

_log = structlog.get_logger()


def anonymous(_: RequestContext) -> Caller:
    """Return the caller of a service without authentication."""
    return ANYONE


def build_server(
    handlers: Sequence[ToolHandler],
    authenticate: Callable[[RequestContext], Caller] = anonymous,
    policy: ResponsePolicy | None = None,
    toolsets: Toolsets | None = None,
    metrics: QueryMetrics | None = None,
) -> Server[Any]:
    """Return an MCP server that offers these tools, every answer within its budget; any replica answers any request.

    Beside them, a caller is offered the tools of its toolset.

    The low-level server, because its schemas, errors and text are ours to keep small: a caller pays for them.
    """
    by_name = {offer.tool.name: offer for offer in handlers}
    effective_policy = policy or ResponsePolicy()
    query_metrics = metrics or QueryMetrics()

    async def scoped_caller(context: RequestContext) -> Caller:
        caller = with_path_toolset(authenticate(context), context)
        if toolsets is None or caller.toolset is None:
            return caller
        return await _read_index(toolsets.with_toolset_scope, caller)

    async def list_tools(context: RequestContext, params: PaginatedRequestParams | None) -> ListToolsResult:
        caller = await scoped_caller(context)
        allowed = [offer for offer in handlers if offer.permission in caller.permissions]
        direct = await _direct(caller, toolsets)
        with _cursor_errors():
            page = page_of_tools(
                [*allowed, *direct.handlers], params.cursor if params else None, caller, effective_policy
            )
        return page.model_copy(update={"meta": direct.meta})

    async def call_tool(context: RequestContext, call: CallToolRequestParams) -> CallToolResult:
        caller = await scoped_caller(context)
        handler = by_name.get(call.name) or (await _direct(caller, toolsets)).handler_named(call.name)
        if handler is None:
            expected = " or ".join(by_name)
            raise MCPError(code=INVALID_PARAMS, message=f"expected the tool {expected}, got {call.name!r}")
        if handler.permission not in caller.permissions:
            return error_result(f"You may not use {call.name}: it needs the permission {handler.permission}.")
        if handler.paging == "foreign":
            check_param_headers(handler.tool, call.arguments or {}, context)
        metric_label = call.name if call.name in by_name else DIRECT
        with ExitStack() as exit_stack, query_metrics.request(metric_label) as record_outcome:
            result = await _handle(
                handler, ToolCallContext(caller, call.arguments or {}, context, exit_stack), effective_policy
            )
            record_outcome(bool(result.is_error))
        return result

    version = importlib.metadata.version("toolscale")
    return Server(
        "toolscale",
        version=version,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        # else the SDK lists all tools for every call over HTTP, to check headers that none of ours asks for
        get_tool_input_schema=lambda _: None,
    )


async def _handle(handler: ToolHandler, context: ToolCallContext, policy: ResponsePolicy) -> CallToolResult:
    with structlog.contextvars.bound_contextvars(caller=context.caller.name):
        try:
            with _cursor_errors():
                return await handle(handler, context, policy)
        except MCPError:
            raise
        except Exception:  # noqa: BLE001  # the SDK would tell callers of older revisions what the exception says
            _log.exception("call_failed", tool=handler.tool.name)
            raise MCPError(code=INTERNAL_ERROR, message="internal error") from None


async def _direct(caller: Caller, toolsets: Toolsets | None) -> DirectTools:
    if toolsets is None or caller.toolset is None:
        return NO_DIRECT_TOOLS
    return await _read_index(toolsets.direct, caller)


async def _read_index(read: Callable[[Caller], T], caller: Caller) -> T:
    """Return what is read of the index in a thread; where it does not answer, that is an error of the protocol."""
    try:
        return await anyio.to_thread.run_sync(read, caller)
    except IndexUnavailable as error:
        _log.warning("toolset_read_failed", reason=str(error))
        raise MCPError(code=INTERNAL_ERROR, message=CATALOGUE_UNREACHABLE) from error


@contextmanager
def _cursor_errors() -> Generator[None]:
    """Answer a cursor that cannot be followed as MCP says: an error of the protocol, not of the tool."""
    try:
        yield
    except CursorInvalid as error:
        raise MCPError(code=INVALID_PARAMS, message=str(error)) from error
    except CursorsUnavailable as error:
        _log.warning("cursor_store_unavailable", reason=str(error))
        raise MCPError(code=INTERNAL_ERROR, message=CURSOR_STORE_UNAVAILABLE) from error


def service_of(
    catalogue: Catalogue,
    upstreams: Upstreams | None = None,
    authenticate: Callable[[ServerRequestContext[Any]], Caller] = anonymous,
) -> Server[Any]:
    """Return the server of this catalogue; without a way to the servers, nothing can be called."""
    handlers = builtin_tools(catalogue, upstreams)
    return build_server(
        handlers, authenticate, catalogue.response_policy, toolsets_of(catalogue, handlers), catalogue.metrics
    )


def check_param_headers(tool: Tool, arguments: dict[str, Any], context: ServerRequestContext[Any]) -> None:
    """Return when the headers of this call repeat its arguments as the tool's input schema asks for.

    Only calls over HTTP have headers, and only newer revisions ask for these.

    Raises:
        MCPError: one is missing, or says something else; over HTTP, status 400.
    """
    if not isinstance(context.request, Request) or context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return
    rejection = validate_mcp_param_headers(tool.input_schema, arguments, context.request.headers)
    if rejection is not None:
        raise MCPError(code=rejection.code, message=rejection.message, data=rejection.data)
