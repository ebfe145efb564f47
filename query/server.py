"""The MCP server of the read side: lists the tools we offer and hands each call to the one it names."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import structlog
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
)

from query.bounded.answers import Answers
from query.bounded.serving import answered
from query.bounded.tools_list import page_of_tools
from query.caller import ANYONE, Caller
from query.tools.offer import PAGES_UNREACHABLE, Asked, Offer, refusal
from shared.errors import CursorInvalid, CursorsUnavailable

Context = ServerRequestContext[Any]

_log = structlog.get_logger()


def anyone(_: Context) -> Caller:
    """Return the caller of a service without authentication."""
    return ANYONE


def build_server(
    offers: Sequence[Offer],
    caller_of: Callable[[Context], Caller] = anyone,
    answers: Answers | None = None,
) -> Server[Any]:
    """Return an MCP server that offers these tools, every answer within its budget; any replica answers any request.

    The low-level server, because its schemas, errors and text are ours to keep small: a caller pays for them.
    """
    by_name = {offer.tool.name: offer for offer in offers}
    within = answers or Answers()

    async def list_tools(context: Context, asked: PaginatedRequestParams | None) -> ListToolsResult:
        caller = caller_of(context)
        allowed = [offer for offer in offers if offer.permission in caller.permissions]
        with _cursors_refused():
            return page_of_tools(allowed, asked.cursor if asked else None, caller, within)

    async def call_tool(context: Context, call: CallToolRequestParams) -> CallToolResult:
        offer = by_name.get(call.name)
        if offer is None:
            expected = " or ".join(by_name)
            raise MCPError(code=INVALID_PARAMS, message=f"expected the tool {expected}, got {call.name!r}")
        caller = caller_of(context)
        if offer.permission not in caller.permissions:
            return refusal(f"You may not use {call.name}: it needs the permission {offer.permission}.")
        return await _answered(offer, Asked(caller, call.arguments or {}, context), within)

    version = importlib.metadata.version("toolscale")
    return Server("toolscale", version=version, on_list_tools=list_tools, on_call_tool=call_tool)


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
