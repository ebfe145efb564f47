"""A tool of ours: what is listed of it, and how arguments become a result or an error that says what was wrong."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import structlog
from mcp.server.context import ServerRequestContext
from mcp.types import CallToolResult, TextContent, Tool
from pydantic import BaseModel, ValidationError

from query.caller import Caller, Permission
from query.paging.budget import PagedRequest, counting, json_text
from query.tools.schema import input_schema
from query.tools.threads import run_in_thread
from shared.errors import BudgetTooSmall, CursorsUnavailable, HistoryUnavailable, IndexUnavailable
from shared.validation import first_problem

if TYPE_CHECKING:
    from shared.catalog import Encoding


CATALOGUE_UNREACHABLE = "The tool catalogue cannot be reached at the moment. Try again in a few seconds."
HISTORY_UNREACHABLE = "What was saved cannot be read at the moment. Try again in a few seconds."
CURSOR_STORE_UNAVAILABLE = "Further pages cannot be kept or read at the moment. Try again in a few seconds."

Paging = Literal["kept", "own", "foreign"]

PAGING_ARGUMENTS = input_schema(PagedRequest)["properties"]

RequestT = TypeVar("RequestT", bound=BaseModel)

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ToolCallContext:
    """One call of a tool of ours: by whom, with what, and the request it came in.

    `until_answered` is closed when the answer has been made, pages cut and all.
    """

    caller: Caller
    arguments: dict[str, Any]
    mcp_context: ServerRequestContext[Any]
    exit_stack: ExitStack


@dataclass(frozen=True, slots=True)
class ToolHandler:
    """A tool of ours; `permission` is what a caller needs to use it.

    `pages` says who divides an answer that is too long. "kept": the server does, keeps the rest, and answers
    `cursor` itself; the tool declares the arguments of PagedRequest. "own": the tool does, and obeys `max_tokens`.
    "foreign": the server does; the arguments are another server's, and the rest is read with `call_tool`.
    `place` is what such tools are listed by: unlike the name, it stays the same while others come and go.
    """

    tool: Tool
    permission: Permission
    handle: Callable[[ToolCallContext], Awaitable[CallToolResult]]
    paging: Paging = "kept"
    sort_key: str = ""


def listed(handler: ToolHandler) -> Tool:
    """Return a tool as it is listed: one whose rest is kept takes `max_tokens` and `cursor` beside its arguments.

    Such a tool promises no schema of its output, since a page of a long answer is a part of its text.
    """
    if handler.paging != "kept":
        return handler.tool
    properties = handler.tool.input_schema.get("properties", {})
    schema = {**handler.tool.input_schema, "properties": {**properties, **PAGING_ARGUMENTS}}
    return handler.tool.model_copy(update={"input_schema": schema, "output_schema": None})


def handler_for(
    model: type[RequestT], respond: Callable[[RequestT, Caller], dict[str, Any]]
) -> Callable[[ToolCallContext], Awaitable[CallToolResult]]:
    """Return how a tool answers that reads the catalogue: `respond` runs in a thread and returns a JSON object.

    Arguments that are wrong and an index that is down become results that say so.
    """

    async def handle(context: ToolCallContext) -> CallToolResult:
        try:
            request = model.model_validate(context.arguments)
        except ValidationError as error:
            return error_result(first_problem(error))
        try:
            return result(await run_in_thread(respond, request, context.caller))
        except IndexUnavailable as error:
            _log.warning("find_failed", reason=str(error))
            return error_result(CATALOGUE_UNREACHABLE)
        except HistoryUnavailable as error:
            _log.warning("savings_read_failed", reason=str(error))
            return error_result(HISTORY_UNREACHABLE)
        except CursorsUnavailable as error:
            _log.warning("cursor_store_unavailable", reason=str(error))
            return error_result(CURSOR_STORE_UNAVAILABLE)
        except BudgetTooSmall as error:
            return error_result(str(error))

    return handle


def result(response: dict[str, Any]) -> CallToolResult:
    """Return an answer as structured content, and the same once more as text for clients that read no other."""
    return CallToolResult(content=[TextContent(type="text", text=json_text(response))], structured_content=response)


def error_result(reason: str) -> CallToolResult:
    """Return a result that is an error, for the model to read."""
    return CallToolResult(content=[TextContent(type="text", text=reason)], is_error=True)


class BuiltinDefinitions:
    """The tokens of our definitions as `tools/list` sends them, counted once for each set of permissions."""

    def __init__(self, handlers: Sequence[ToolHandler], encoding: Encoding) -> None:
        """Take the offers as they are when they are first counted."""
        self._handlers = handlers
        self._encoding = encoding
        self.tokens = functools.lru_cache(self._tokens)

    def _tokens(self, permissions: frozenset[Permission]) -> int:
        count = counting(self._encoding)
        tools = (
            listed(handler)
            for handler in self._handlers
            if handler.permission in permissions and handler.paging != "foreign"
        )
        return sum(count(tool.model_dump_json(by_alias=True, exclude_none=True)) for tool in tools)
