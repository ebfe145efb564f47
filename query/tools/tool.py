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
from query.paging.budget import BoundedRequest, counting, json_text
from query.tools.schema import input_schema
from query.tools.threads import in_turn
from shared.errors import BudgetTooSmall, CursorsUnavailable, HistoryUnavailable, IndexUnavailable

if TYPE_CHECKING:
    from shared.catalog import Encoding


CATALOGUE_UNREACHABLE = "The tool catalogue cannot be reached at the moment. Try again in a few seconds."
HISTORY_UNREACHABLE = "What was saved cannot be read at the moment. Try again in a few seconds."
PAGES_UNREACHABLE = "Further pages cannot be kept or read at the moment. Try again in a few seconds."

Pages = Literal["kept", "own", "foreign"]

OWN_ARGUMENTS = input_schema(BoundedRequest)["properties"]

RequestT = TypeVar("RequestT", bound=BaseModel)

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Asked:
    """One call of a tool of ours: by whom, with what, and the request it came in.

    `until_answered` is closed when the answer has been made, pages cut and all.
    """

    caller: Caller
    arguments: dict[str, Any]
    context: ServerRequestContext[Any]
    until_answered: ExitStack


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool of ours; `permission` is what a caller needs to use it.

    `pages` says who divides an answer that is too long. "kept": the server does, keeps the rest, and answers
    `cursor` itself; the tool declares the arguments of BoundedRequest. "own": the tool does, and obeys `max_tokens`.
    "foreign": the server does; the arguments are another server's, and the rest is read with `call_tool`.
    `place` is what such tools are listed by: unlike the name, it stays the same while others come and go.
    """

    tool: Tool
    permission: Permission
    answer: Callable[[Asked], Awaitable[CallToolResult]]
    pages: Pages = "kept"
    place: str = ""


def listed(offer: Offer) -> Tool:
    """Return a tool as it is listed: one whose rest is kept takes `max_tokens` and `cursor` beside its arguments.

    Such a tool promises no schema of its output, since a page of a long answer is a part of its text.
    """
    if offer.pages != "kept":
        return offer.tool
    properties = offer.tool.input_schema.get("properties", {})
    schema = {**offer.tool.input_schema, "properties": {**properties, **OWN_ARGUMENTS}}
    return offer.tool.model_copy(update={"input_schema": schema, "output_schema": None})


def answering(
    model: type[RequestT], respond: Callable[[RequestT, Caller], dict[str, Any]]
) -> Callable[[Asked], Awaitable[CallToolResult]]:
    """Return how a tool answers that reads the catalogue: `respond` runs in a thread and returns a JSON object.

    Arguments that are wrong and an index that is down become results that say so.
    """

    async def answer(asked: Asked) -> CallToolResult:
        try:
            request = model.model_validate(asked.arguments)
        except ValidationError as error:
            return refusal(first_problem(error))
        try:
            return result(await in_turn(respond, request, asked.caller))
        except IndexUnavailable as error:
            _log.warning("find_failed", reason=str(error))
            return refusal(CATALOGUE_UNREACHABLE)
        except HistoryUnavailable as error:
            _log.warning("savings_not_read", reason=str(error))
            return refusal(HISTORY_UNREACHABLE)
        except CursorsUnavailable as error:
            _log.warning("pages_unreachable", reason=str(error))
            return refusal(PAGES_UNREACHABLE)
        except BudgetTooSmall as error:
            return refusal(str(error))

    return answer


def result(answer: dict[str, Any]) -> CallToolResult:
    """Return an answer as structured content, and the same once more as text for clients that read no other."""
    return CallToolResult(content=[TextContent(type="text", text=json_text(answer))], structured_content=answer)


def refusal(reason: str) -> CallToolResult:
    """Return a result that is an error, for the model to read."""
    return CallToolResult(content=[TextContent(type="text", text=reason)], is_error=True)


def first_problem(error: ValidationError) -> str:
    """Return `field: reason` for the first field that is wrong, without the caller's value."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    # a model's own validator names the field itself and is introduced by pydantic
    reason = first["msg"].removeprefix("Value error, ")
    return f"{first['loc'][0]}: {reason}" if first["loc"] else reason


class OwnDefinitions:
    """The tokens of our definitions as `tools/list` sends them, counted once for each set of permissions."""

    def __init__(self, offers: Sequence[Offer], encoding: Encoding) -> None:
        """Take the offers as they are when they are first counted."""
        self._offers = offers
        self._encoding = encoding
        self.tokens = functools.lru_cache(self._tokens)

    def _tokens(self, permissions: frozenset[Permission]) -> int:
        count = counting(self._encoding)
        ours = (listed(each) for each in self._offers if each.permission in permissions and each.pages != "foreign")
        return sum(count(tool.model_dump_json(by_alias=True, exclude_none=True)) for tool in ours)
