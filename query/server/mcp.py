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
from query.paging.policy import Answers
from query.server.paging import answered
from query.server.tools_list import page_of_tools
from query.tools.registry import offers
from query.tools.tool import CATALOGUE_UNREACHABLE, PAGES_UNREACHABLE, Asked, Offer, refusal
from query.tools.toolset_tools import NOTHING_DIRECT, Direct, Toolsets, toolsets_of
from query.toolsets.active import with_chosen
from shared.errors import CursorInvalid, CursorsUnavailable, IndexUnavailable

if TYPE_CHECKING:
    from mcp.server import Server
    from mcp.server.context import ServerRequestContext
    from mcp.types import Tool

    from query.caller import Caller
    from query.calling.upstreams import Upstreams
    from query.catalogue import Catalogue


Context = ServerRequestContext[Any]
T = TypeVar("T")

# What a toolset's tools are counted as: their own names are as many as there are.
DIRECT = "direct"

_log = structlog.get_logger()


def anyone(_: Context) -> Caller:
    """Return the caller of a service without authentication."""
    return ANYONE


def build_server(
    offers: Sequence[Offer],
    caller_of: Callable[[Context], Caller] = anyone,
    answers: Answers | None = None,
    toolsets: Toolsets | None = None,
    metrics: QueryMetrics | None = None,
) -> Server[Any]:
    """Return an MCP server that offers these tools, every answer within its budget; any replica answers any request.

    Beside them, a caller is offered the tools of its toolset.

    The low-level server, because its schemas, errors and text are ours to keep small: a caller pays for them.
    """
    by_name = {offer.tool.name: offer for offer in offers}
    within = answers or Answers()
    counted = metrics or QueryMetrics()

    async def known(context: Context) -> Caller:
        caller = with_chosen(caller_of(context), context)
        if toolsets is None or caller.toolset is None:
            return caller
        return await _reading(toolsets.activated, caller)

    async def list_tools(context: Context, asked: PaginatedRequestParams | None) -> ListToolsResult:
        caller = await known(context)
        allowed = [offer for offer in offers if offer.permission in caller.permissions]
        direct = await _direct(caller, toolsets)
        with _cursors_refused():
            page = page_of_tools([*allowed, *direct.offers], asked.cursor if asked else None, caller, within)
        return page.model_copy(update={"meta": direct.meta})

    async def call_tool(context: Context, call: CallToolRequestParams) -> CallToolResult:
        caller = await known(context)
        offer = by_name.get(call.name) or (await _direct(caller, toolsets)).named(call.name)
        if offer is None:
            expected = " or ".join(by_name)
            raise MCPError(code=INVALID_PARAMS, message=f"expected the tool {expected}, got {call.name!r}")
        if offer.permission not in caller.permissions:
            return refusal(f"You may not use {call.name}: it needs the permission {offer.permission}.")
        if offer.pages == "foreign":
            check_param_headers(offer.tool, call.arguments or {}, context)
        counted_as = call.name if call.name in by_name else DIRECT
        with ExitStack() as until_answered, counted.request(counted_as) as ended:
            result = await _answered(offer, Asked(caller, call.arguments or {}, context, until_answered), within)
            ended(bool(result.is_error))
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


async def _answered(offer: Offer, asked: Asked, answers: Answers) -> CallToolResult:
    with structlog.contextvars.bound_contextvars(caller=asked.caller.name):
        try:
            with _cursors_refused():
                return await answered(offer, asked, answers)
        except MCPError:
            raise
        except Exception:  # noqa: BLE001  # the SDK would tell callers of older revisions what the exception says
            _log.exception("call_failed", tool=offer.tool.name)
            raise MCPError(code=INTERNAL_ERROR, message="internal error") from None


async def _direct(caller: Caller, toolsets: Toolsets | None) -> Direct:
    if toolsets is None or caller.toolset is None:
        return NOTHING_DIRECT
    return await _reading(toolsets.direct, caller)


async def _reading(read: Callable[[Caller], T], caller: Caller) -> T:
    """Return what is read of the index in a thread; where it does not answer, that is an error of the protocol."""
    try:
        return await anyio.to_thread.run_sync(read, caller)
    except IndexUnavailable as error:
        _log.warning("toolset_unreachable", reason=str(error))
        raise MCPError(code=INTERNAL_ERROR, message=CATALOGUE_UNREACHABLE) from error


@contextmanager
def _cursors_refused() -> Generator[None]:
    """Answer a cursor that cannot be followed as MCP says: an error of the protocol, not of the tool."""
    try:
        yield
    except CursorInvalid as error:
        raise MCPError(code=INVALID_PARAMS, message=str(error)) from error
    except CursorsUnavailable as error:
        _log.warning("pages_unreachable", reason=str(error))
        raise MCPError(code=INTERNAL_ERROR, message=PAGES_UNREACHABLE) from error


def service_of(
    catalogue: Catalogue,
    upstreams: Upstreams | None = None,
    caller_of: Callable[[ServerRequestContext[Any]], Caller] = anyone,
) -> Server[Any]:
    """Return the server of this catalogue; without a way to the servers, nothing can be called."""
    ours = offers(catalogue, upstreams)
    return build_server(ours, caller_of, catalogue.answers, toolsets_of(catalogue, ours), catalogue.metrics)


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
