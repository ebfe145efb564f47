"""All tools that a caller may see, by server, with their cost to a context.

Tools are ordered by server id and point id, which never change, and a cursor is a position in that order.
So no tool comes twice, and no tool that stays is missing.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import structlog
from pydantic import BaseModel, ConfigDict

from query.catalogue import Catalogue
from query.paging.budget import Budget, CursorText, MaxTokens
from query.paging.fitting import LIKE_A_CURSOR, most_that_fit
from query.savings.context import ContextInfo, ContextMeta, context_info, context_meta
from query.search.request import ToolNames, intersection
from query.tools.listed import ListDetail, listed_servers
from shared.catalog import Encoding, IndexedTool, Scope, point_id
from shared.errors import BudgetTooSmall
from shared.text.forms import PROFILE, json_text
from shared.text.tokens import is_estimate

TOOL = "list_available_tools"
# Tools read for one page; more hardly fit any budget, except as names.
READ_TOOLS = 250
_POINT_BYTES = 16
NAMES_ONLY = "Names only: the next tool does not fit in the form asked for."
_SHORTEST: ListDetail = "name"

_log = structlog.get_logger()


class ListRequest(BaseModel):
    """The tools to list, and the detail level."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    servers: ToolNames | None = None
    """Only these servers."""
    groups: ToolNames | None = None
    """Only tools of these groups."""
    detail: ListDetail = _SHORTEST
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


@dataclass(frozen=True, slots=True)
class _ToolsInOrder:
    """Tools in their order, of which a page shows the first; `is_end`: no further tools follow these.

    `contexts` has the cost of each server, and `total` that of all requested tools, of which all shares are.
    """

    tools: Sequence[IndexedTool]
    is_end: bool
    contexts: dict[str, ContextInfo]
    total: int
    meta: ContextMeta


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
    _log.info("tools_listed", listed=count)
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
    possible, total = (ledger.baseline(part, encoding).model_tokens for part in (allowed, scope))
    tools = list(islice(_walk(position, scope, catalogue), READ_TOOLS + 1))
    page = tools[:READ_TOOLS]
    contexts = {
        server: context_info(ledger.of_server(server, scope, encoding).model_tokens, total)
        for server in dict.fromkeys(tool.server_id for tool in page)
    }
    return _ToolsInOrder(page, len(tools) <= READ_TOOLS, contexts, total, context_meta(total, possible))


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
    requested: ListDetail, page: _ToolsInOrder, budget: Budget, encoding: Encoding
) -> tuple[ListDetail, int]:
    """Return the requested detail level, or the shortest, at which some tools fit, and the number that fits."""
    if not page.tools:
        return requested, 0
    for detail in dict.fromkeys((requested, _SHORTEST)):
        count = _fitting(detail, page, budget, encoding, is_shorter=detail != requested)
        if count:
            return detail, count
    raise BudgetTooSmall(f"max_tokens: {budget.max_tokens} are too few for the next tool; ask for more")


def _fitting(detail: ListDetail, page: _ToolsInOrder, budget: Budget, encoding: Encoding, *, is_shorter: bool) -> int:
    def fits(count: int) -> bool:
        response = _response(page, detail, count, encoding, LIKE_A_CURSOR, is_shorter=is_shorter)
        return budget.admits(json_text(response))

    return most_that_fit(len(page.tools), fits)


def _response(
    page: _ToolsInOrder, detail: ListDetail, count: int, encoding: Encoding, cursor: str | None, *, is_shorter: bool
) -> dict[str, Any]:
    servers = listed_servers(page.tools[:count], page.contexts, detail, encoding, page.total)
    response: dict[str, Any] = {
        "toolsByServer": [_object(server) for server in servers],
        "meta": _object(page.meta),
        "encoding": encoding,
        "profile": PROFILE,
    }
    response |= {"estimated": True} if is_estimate(encoding) else {}
    response |= {"nextCursor": cursor} if cursor else {}
    return response | ({"warnings": [NAMES_ONLY]} if is_shorter else {})


def _object(model: BaseModel) -> dict[str, Any]:
    """Return the model as JSON: without texts that were not requested, with null for a missing share."""
    return model.model_dump(mode="json", by_alias=True)
