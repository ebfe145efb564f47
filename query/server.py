"""The MCP server of the read side: what it offers, and how an answer or an error becomes a result."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import structlog
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)
from pydantic import ValidationError

from query.abstain import NO_MATCH_BELOW
from query.answer import FindAnswer
from query.find import find_tool
from query.request import FindRequest
from query.schema import input_schema, output_schema
from shared.catalog import Encoding, Scope
from shared.errors import IndexUnavailable

if TYPE_CHECKING:
    from query.ledger import Ledger
    from shared.embedding import Embedder
    from shared.index.contract import ToolIndex

FIND_TOOL = Tool(
    name="find_tool",
    description=(
        "Search the tools of all connected MCP servers by what they do. "
        "For a task of several steps, give one description a step. "
        "Returns the best matches with their full definitions, and the tokens this saved."
    ),
    input_schema=input_schema(FindRequest),
    output_schema=output_schema(FindAnswer),
    annotations=ToolAnnotations(title="Find tools", read_only_hint=True, idempotent_hint=True, open_world_hint=False),
)

CATALOGUE_UNREACHABLE = "The tool catalogue cannot be reached at the moment. Try again in a few seconds."

Find = Callable[[FindRequest], FindAnswer]

_log = structlog.get_logger()


def build_server(
    *,
    index: ToolIndex,
    embedder: Embedder,
    ledger: Ledger,
    encoding: Encoding,
    no_match_below: float = NO_MATCH_BELOW,
) -> Server[Any]:
    """Return an MCP server that answers `find_tool`; it keeps nothing between two requests.

    The low-level server, because its schemas, errors and text are ours to keep small: a caller pays for them.
    """
    find = partial(
        find_tool,
        scope=Scope(),
        index=index,
        embedder=embedder,
        ledger=ledger,
        encoding=encoding,
        no_match_below=no_match_below,
    )

    async def list_tools(_: ServerRequestContext[Any], __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[FIND_TOOL])

    async def call_tool(_: ServerRequestContext[Any], call: CallToolRequestParams) -> CallToolResult:
        if call.name != FIND_TOOL.name:
            raise MCPError(code=INVALID_PARAMS, message=f"expected the tool {FIND_TOOL.name}, got {call.name!r}")
        return await _find_tool(call.arguments or {}, find)

    version = importlib.metadata.version("toolscale")
    return Server("toolscale", version=version, on_list_tools=list_tools, on_call_tool=call_tool)


async def _find_tool(arguments: dict[str, Any], find: Find) -> CallToolResult:
    try:
        request = FindRequest.model_validate(arguments)
    except ValidationError as error:
        return _refusal(_first_problem(error))
    try:
        answer = await anyio.to_thread.run_sync(find, request)
    except IndexUnavailable as error:
        _log.warning("find_failed", reason=str(error))
        return _refusal(CATALOGUE_UNREACHABLE)
    _log_found(answer)
    return _result(answer.as_object())


def _first_problem(error: ValidationError) -> str:
    """Return `field: reason` for the first field that is wrong, without the caller's value."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    # a model's own validator names the field itself and is introduced by pydantic
    reason = first["msg"].removeprefix("Value error, ")
    return f"{first['loc'][0]}: {reason}" if first["loc"] else reason


def _result(answer: dict[str, Any]) -> CallToolResult:
    # the same once more as text, for clients that read no structured content
    text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=answer)


def _refusal(reason: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=reason)], is_error=True)


def _log_found(answer: FindAnswer) -> None:
    metrics, timings = answer.token_metrics, answer.timings
    _log.info(
        "tools_found",
        hits=len(answer.tools),
        no_match=bool(answer.no_match),
        baseline_tokens=metrics.baseline_tokens,
        returned_tokens=metrics.returned_tokens,
        tokens_saved=metrics.tokens_saved,
        uncounted=metrics.uncounted_total,
        embed_ms=round(timings.embed_ms, 2),
        search_ms=round(timings.search_ms, 2),
        sum_ms=round(timings.sum_ms, 2),
        total_ms=round(timings.total_ms, 2),
    )
