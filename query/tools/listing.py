"""All tools that a caller may see, by server, with the tokens of each definition.

Tools are ordered by server id and point id, which never change, and a cursor is a position in that order.
So no tool comes twice, and no tool that stays is missing.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from query.catalogue import Catalogue
from query.paging.budget import Budget, CursorText, MaxTokens
from query.paging.fitting import most_that_fit
from query.response.find_response import DetailLevel, shown_definition
from query.response.summary import summary
from query.savings.savings import ContextCost, context_cost
from query.search.request import ToolNames, intersection
from shared.catalog import Encoding, IndexedTool, Scope, point_id
from shared.errors import BudgetTooSmall
from shared.text.forms import json_text
from shared.text.tokens import is_estimate

TOOL = "list_available_tools"
# Tools read for one page; more hardly fit any budget.
READ_TOOLS = 250
_POINT_BYTES = 16
NAMES_ONLY = "Names only: the next tool does not fit in the form asked for."
# As long, and as many tokens, as a cursor commonly has: to measure with.
_LIKE_A_CURSOR = "q7Zk0XvB3nTfYw9LrD5sHcJ2mPgA8eUo4iKxVb1NtQyRz6WlSdFhGjMpCaEuOvIkB0nXw5T3YZ"


class ListRequest(BaseModel):
    """The tools to list, and the detail level."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    servers: ToolNames | None = None
    """Only these servers."""
    groups: ToolNames | None = None
    """Only tools of these groups."""
    detail: Literal["name", "summary", "detailed"] = "name"
    encoding: Encoding | None = None
    max_tokens: MaxTokens | None = None
    cursor: CursorText | None = None
    """nextCursor of the answer before."""

    def narrow(self, allowed: Scope) -> Scope:
        """Return the part of the allowed scope that this request names."""
        return replace(
            allowed,
            servers=intersection(allowed.servers, self.servers),
            groups=intersection(allowed.groups, self.groups),
        )

    @property
    def question(self) -> str:
        """Return the text that binds a cursor to the tools of this request."""
        return json_text([sorted(self.servers or []), sorted(self.groups or []), self.servers == [], self.groups == []])


def _is_none(value: object) -> bool:
    return value is None


class ListedTool(BaseModel):
    """A tool and the tokens of its definition."""

    model_config = ConfigDict(frozen=True)

    name: str
    context: ContextCost
    summary: str | None = Field(default=None, exclude_if=_is_none)
    definition: dict[str, Any] | None = Field(default=None, exclude_if=_is_none)


class ListedServer(BaseModel):
    """The tools of a server on this page, and the tokens of all its requested tools."""

    model_config = ConfigDict(frozen=True)

    server: str
    context: ContextCost
    tools: list[ListedTool]


@dataclass(frozen=True, slots=True)
class _ToolsInOrder:
    """Tools in their order, of which a page shows the first; `is_end`: no further tools follow these."""

    tools: Sequence[IndexedTool]
    is_end: bool
    contexts: dict[str, ContextCost]
    listed: ContextCost
    total: int


def list_tools(request: ListRequest, allowed: Scope, catalogue: Catalogue, caller: str) -> dict[str, Any]:
    """Return a page of the allowed tools as the JSON object to send, within the tokens of the request.

    Raises:
        IndexUnavailable: the index did not answer.
        CursorInvalid: the cursor is not of this caller and question, was changed, or has expired.
        CursorsUnavailable: a cursor cannot be followed or made now.
        BudgetTooSmall: not even one tool's name fits into the tokens of the request.
    """
    catalogue = catalogue.pinned()
    scope, encoding = request.narrow(allowed), request.encoding or catalogue.encoding
    cursors, binding = catalogue.response_policy.cursors, (caller, TOOL, request.question)
    position = cursors.unseal(request.cursor, *binding) if request.cursor else b""
    page = _available(position, scope, allowed, catalogue, encoding)
    budget = catalogue.response_policy.budget(request.max_tokens, encoding)
    detail, count = _fit_detail(request.detail, page, budget, encoding)
    is_all = page.is_end and count == len(page.tools)
    cursor = None if is_all else cursors.seal(_position(page.tools[count - 1]), *binding)
    return _response(page, detail, count, encoding, cursor, is_shorter=detail != request.detail)


def tools_of(scope: Scope, catalogue: Catalogue) -> Iterator[IndexedTool]:
    """Yield the tools of the scope in the order of their points' ids, as `list_available_tools` walks over a server.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    return _of_server(scope, None, catalogue.pinned())


def _available(
    position: bytes, scope: Scope, allowed: Scope, catalogue: Catalogue, encoding: Encoding
) -> _ToolsInOrder:
    ledger = catalogue.ledger
    total, listed = ledger.baseline(allowed, encoding).tokens, ledger.baseline(scope, encoding).tokens
    tools = list(islice(_walk(position, scope, catalogue), READ_TOOLS + 1))
    page = tools[:READ_TOOLS]
    sums = {
        server: ledger.of_server(server, scope, encoding).tokens
        for server in dict.fromkeys(tool.server_id for tool in page)
    }
    contexts = {server: context_cost(tokens, total) for server, tokens in sums.items()}
    return _ToolsInOrder(page, len(tools) <= READ_TOOLS, contexts, context_cost(listed, total), total)


def _walk(position: bytes, scope: Scope, catalogue: Catalogue) -> Iterator[IndexedTool]:
    """Yield the tools of the scope after a position, server by server."""
    point, at = position[:_POINT_BYTES], position[_POINT_BYTES:].decode()
    for server in catalogue.ledger.servers(scope):
        if server >= at:
            after = str(uuid.UUID(bytes=point)) if point and server == at else None
            yield from _of_server(replace(scope, servers=frozenset({server})), after, catalogue)


def _of_server(scope: Scope, after: str | None, catalogue: Catalogue) -> Iterator[IndexedTool]:
    while True:
        page = catalogue.index.tools(scope, limit=READ_TOOLS, after=after)
        yield from page.tools
        after = page.next_after
        if after is None:
            return


def _position(tool: IndexedTool) -> bytes:
    return uuid.UUID(point_id(tool.server_id, tool.definition.name)).bytes + tool.server_id.encode()


def _fit_detail(
    requested: DetailLevel, page: _ToolsInOrder, budget: Budget, encoding: Encoding
) -> tuple[DetailLevel, int]:
    """Return the requested detail level, or the shortest, at which some tools fit, and the number that fits."""
    if not page.tools:
        return requested, 0
    for detail in dict.fromkeys((requested, _SHORTEST)):
        count = _fitting(detail, page, budget, encoding, is_shorter=detail != requested)
        if count:
            return detail, count
    raise BudgetTooSmall(f"max_tokens: {budget.max_tokens} are too few for the next tool; ask for more")


def _fitting(detail: DetailLevel, page: _ToolsInOrder, budget: Budget, encoding: Encoding, *, is_shorter: bool) -> int:
    def fits(count: int) -> bool:
        response = _response(page, detail, count, encoding, _LIKE_A_CURSOR, is_shorter=is_shorter)
        return budget.admits(json_text(response))

    return most_that_fit(len(page.tools), fits)


_SHORTEST: DetailLevel = "name"


def _response(
    page: _ToolsInOrder, detail: DetailLevel, count: int, encoding: Encoding, cursor: str | None, *, is_shorter: bool
) -> dict[str, Any]:
    servers = [
        ListedServer(
            server=server,
            context=page.contexts[server],
            tools=[_listed(tool, detail, encoding, page.total) for tool in tools],
        )
        for server, tools in groupby(page.tools[:count], key=lambda tool: tool.server_id)
    ]
    response: dict[str, Any] = {
        "toolsByServer": [_object(server) for server in servers],
        "meta": {"context": _object(page.listed), "totalPossibleContext": page.total},
        "encoding": encoding,
    }
    response |= {"estimated": True} if is_estimate(encoding) else {}
    response |= {"nextCursor": cursor} if cursor else {}
    return response | ({"warnings": [NAMES_ONLY]} if is_shorter else {})


def _listed(tool: IndexedTool, detail: DetailLevel, encoding: Encoding, total: int) -> ListedTool:
    return ListedTool(
        name=tool.definition.name,
        context=context_cost(tool.token_counts.get(encoding), total),
        summary=summary(tool.definition).encode("utf-8", "replace").decode() if detail == "summary" else None,
        definition=shown_definition(tool.definition, detail),
    )


def _object(model: BaseModel) -> dict[str, Any]:
    """Return the model as JSON: without texts that were not requested, with null for a missing share."""
    return model.model_dump(mode="json", by_alias=True)
