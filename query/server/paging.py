"""Pages of long results and resources, cut by the server."""

from __future__ import annotations

from dataclasses import replace

from mcp.types import (
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ReadResourceResult,
    TextContent,
    TextResourceContents,
)
from pydantic import ValidationError

from query.paging.blocks import OwnText
from query.paging.budget import Budget, PagedRequest
from query.paging.policy import ResponsePolicy
from query.paging.results import Reader, next_page, paginate, surely_fits
from query.tools.tool import PAGING_ARGUMENTS, ToolCallContext, ToolHandler, error_result
from query.turns import continue_in_thread, run_in_thread
from shared.validation import first_invalid_argument

CALL_TOOL = "call_tool"
NOTICE_URI = "toolscale://notice"


async def page_of_result(handler: ToolHandler, context: ToolCallContext, policy: ResponsePolicy) -> CallToolResult:
    """Return the tool's result, or its first page; with a cursor, the next page of an earlier result.

    Raises:
        CursorInvalid: the cursor is not of this caller and tool, was changed, or has expired.
        CursorsUnavailable: a stored result cannot be read now.
    """
    match handler.paging:
        case "own":
            return await handler.call(context)
        case "foreign":
            reader = Reader(context.caller.name, CALL_TOOL)
            return await _paginated(await handler.call(context), reader, policy.budget(), policy)
        case "kept":
            return await _stored_page(handler, context, policy)


def contents_of(result: CallToolResult, uri: str) -> ReadResourceResult:
    """Return a page of the resource at `uri`, from a page in the form of a tool's result.

    The notice of a further page has a URI of its own, since it is no part of the resource.
    """
    return ReadResourceResult(contents=[_contents(block, uri) for block in result.content], _meta=result.meta)


def _contents(block: ContentBlock, uri: str) -> TextResourceContents | BlobResourceContents:
    if isinstance(block, EmbeddedResource):
        return block.resource
    assert isinstance(block, TextContent)  # a page has only texts besides the blocks of its result
    return TextResourceContents(uri=NOTICE_URI if isinstance(block, OwnText) else uri, text=block.text)


async def _stored_page(handler: ToolHandler, context: ToolCallContext, policy: ResponsePolicy) -> CallToolResult:
    paging_arguments = {name: value for name, value in context.arguments.items() if name in PAGING_ARGUMENTS}
    tool_arguments = {name: value for name, value in context.arguments.items() if name not in PAGING_ARGUMENTS}
    try:
        request = PagedRequest.model_validate(paging_arguments)
    except ValidationError as error:
        return error_result(first_invalid_argument(error))
    reader, budget = Reader(context.caller.name, handler.tool.name), policy.budget(request.max_tokens)
    if request.cursor is not None:
        return await run_in_thread(reader.caller, next_page, request.cursor, reader, budget, policy)
    return await _paginated(await handler.call(replace(context, arguments=tool_arguments)), reader, budget, policy)


async def _paginated(result: CallToolResult, reader: Reader, budget: Budget, policy: ResponsePolicy) -> CallToolResult:
    if surely_fits(result, budget):
        return result
    # counting a long text takes milliseconds, and storing its rest calls Redis
    return await continue_in_thread(reader.caller, paginate, result, reader, budget, policy)
