"""Every answer of ours within its budget: what the server does around each tool."""

from __future__ import annotations

from dataclasses import replace

import anyio
import structlog
from mcp.types import CallToolResult
from pydantic import ValidationError

from query.paging.budget import Budget, PagedRequest
from query.paging.policy import ResponsePolicy
from query.paging.results import Reader, next_page, paginate, surely_fits
from query.tools.tool import (
    CURSOR_STORE_UNAVAILABLE,
    PAGING_ARGUMENTS,
    ToolCallContext,
    ToolHandler,
    error_result,
)
from shared.errors import CursorsUnavailable
from shared.validation import first_problem

CALL_TOOL = "call_tool"


_log = structlog.get_logger()


async def handle(handler: ToolHandler, context: ToolCallContext, policy: ResponsePolicy) -> CallToolResult:
    """Return the tool's answer within the budget; with a cursor, the next page of an earlier one.

    Raises:
        CursorInvalid: the cursor is not of this caller and tool, was changed, or has expired.
    """
    match handler.paging:
        case "own":
            return await handler.handle(context)
        case "foreign":
            result = await handler.handle(context)
            return await _paginated(result, Reader(context.caller.name, CALL_TOOL), policy.budget(), policy)
        case "kept":
            return await _handle_stored(handler, context, policy)


async def _handle_stored(handler: ToolHandler, context: ToolCallContext, policy: ResponsePolicy) -> CallToolResult:
    paging_arguments = {name: value for name, value in context.arguments.items() if name in PAGING_ARGUMENTS}
    tool_arguments = {name: value for name, value in context.arguments.items() if name not in PAGING_ARGUMENTS}
    try:
        request = PagedRequest.model_validate(paging_arguments)
    except ValidationError as error:
        return error_result(first_problem(error))
    reader, budget = Reader(context.caller.name, handler.tool.name), policy.budget(request.max_tokens)
    if request.cursor is not None:
        return await _next_page(request.cursor, reader, budget, policy)
    return await _paginated(await handler.handle(replace(context, arguments=tool_arguments)), reader, budget, policy)


async def _next_page(cursor: str, reader: Reader, budget: Budget, policy: ResponsePolicy) -> CallToolResult:
    try:
        return await anyio.to_thread.run_sync(next_page, cursor, reader, budget, policy)
    except CursorsUnavailable as error:
        _log.warning("cursor_store_unavailable", reason=str(error))
        return error_result(CURSOR_STORE_UNAVAILABLE)


async def _paginated(result: CallToolResult, reader: Reader, budget: Budget, policy: ResponsePolicy) -> CallToolResult:
    if surely_fits(result, budget):
        return result
    # long texts take milliseconds to count, and keeping the rest asks Redis
    return await anyio.to_thread.run_sync(paginate, result, reader, budget, policy)
