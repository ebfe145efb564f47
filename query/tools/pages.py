"""Pages of long results, of resources and of `tools/list`, cut by the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mcp.types import (
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ListToolsResult,
    ReadResourceResult,
    TextContent,
    TextResourceContents,
)
from pydantic import ValidationError

from query.answers.budget import Budget, PagedRequest, ResponsePolicy, items_that_fit
from query.answers.pages import OwnText, Reader, next_page, paginate, surely_fits
from query.caller import Caller
from query.kept import Kept
from query.tool import PAGING_ARGUMENTS, ToolCallContext, ToolHandler, error_result, listed
from query.turns import continue_in_thread, run_in_thread
from shared.validation import first_invalid_argument

CALL_TOOL = "call_tool"
NOTICE_URI = "toolscale://notice"
TOOLS_LIST = "tools/list"


async def page_of_result(handler: ToolHandler, context: ToolCallContext, policy: ResponsePolicy) -> CallToolResult:
    """Return the tool's result, or its first page; with a cursor, the next page of an earlier result.

    Raises:
        CursorInvalid: the cursor is not of this caller and tool, was changed, or has expired.
        CursorsUnavailable: a stored result cannot be read now.
    """
    if handler.paging == "own":
        return await handler.call(context)
    if handler.paging == "foreign":
        reader = Reader(context.caller.name, CALL_TOOL)
        return await _paginated(await handler.call(context), reader, policy.budget(), policy.kept)
    paging_arguments = {name: value for name, value in context.arguments.items() if name in PAGING_ARGUMENTS}
    tool_arguments = {name: value for name, value in context.arguments.items() if name not in PAGING_ARGUMENTS}
    try:
        request = PagedRequest.model_validate(paging_arguments)
    except ValidationError as error:
        return error_result(first_invalid_argument(error))
    reader, budget = Reader(context.caller.name, handler.tool.name), policy.budget(request.max_tokens)
    if request.cursor is not None:
        return await run_in_thread(reader.caller, next_page, request.cursor, reader, budget, policy.kept)
    return await _paginated(await handler.call(replace(context, arguments=tool_arguments)), reader, budget, policy.kept)


async def _paginated(result: CallToolResult, reader: Reader, budget: Budget, kept: Kept) -> CallToolResult:
    if surely_fits(result, budget):
        return result
    # counting a long text takes milliseconds, and storing its rest calls Redis
    return await continue_in_thread(reader.caller, paginate, result, reader, budget, kept)


def page_of_resource(result: CallToolResult, uri: str) -> CallToolResult:
    """Return a page of the resource at `uri` with its texts as embedded resources; the notice stays as it is."""

    def embedded(block: ContentBlock) -> ContentBlock:
        if isinstance(block, OwnText) or not isinstance(block, TextContent):
            return block
        return EmbeddedResource(resource=TextResourceContents(uri=uri, text=block.text))

    return result.model_copy(update={"content": list(map(embedded, result.content))})


def contents_of(page: CallToolResult) -> ReadResourceResult:
    """Return the contents of a page from `page_of_resource`.

    The notice of a further page has a URI of its own, since it is no part of the resource.
    """

    def contents(block: ContentBlock) -> TextResourceContents | BlobResourceContents:
        if isinstance(block, EmbeddedResource):
            return block.resource
        assert isinstance(block, OwnText)
        return TextResourceContents(uri=NOTICE_URI, text=block.text)

    return ReadResourceResult(contents=list(map(contents, page.content)), _meta=page.meta)


def page_of_tools(
    handlers: Sequence[ToolHandler], cursor: str | None, caller: Caller, policy: ResponsePolicy
) -> ListToolsResult:
    """Return a page of these tools: built-in tools on the first, then toolset tools in order, as many as fit.

    Every later page has at least one tool. If tools come and go between two pages, no tool is listed twice and no
    tool that stays is missing.

    Raises:
        CursorInvalid: the cursor is not of this caller's list, was changed, or has expired.
        CursorsUnavailable: a cursor cannot be read or stored now.
    """
    is_first = cursor is None
    builtin = [offer for offer in handlers if is_first and offer.paging != "foreign"]
    last = "" if cursor is None else policy.kept.get(cursor, caller.name, TOOLS_LIST).decode()
    others = sorted((offer for offer in handlers if offer.paging == "foreign"), key=lambda offer: offer.sort_key)
    rest = [offer for offer in others if offer.sort_key > last]
    if not rest:
        return ListToolsResult(tools=list(map(listed, builtin)))  # counting their tokens would load a vocabulary
    # a definition cannot be divided, so a single one may exceed the budget
    texts = [offer.listed_text for offer in (*builtin, *rest)]
    count = max(items_that_fit(texts, policy.budget()) - len(builtin), 0 if is_first else 1)
    page = rest[:count]
    after = page[-1].sort_key if page else ""
    next_cursor = policy.kept.put(after.encode(), caller.name, TOOLS_LIST) if count < len(rest) else None
    return ListToolsResult(tools=list(map(listed, [*builtin, *page])), next_cursor=next_cursor)
