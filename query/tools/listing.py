"""All tools that a caller may see, by server, with their cost to a context.

A replica set is listed as its first server, with the tools of that server.
Tools are ordered by server id and point id, which never change, and a cursor is a position in that order.
So no tool of a server comes twice, and no tool that stays is missing.

A server that changed after the first page is listed by itself: other replicas would hide it behind the position.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any

import structlog
from pydantic import BaseModel

from query.answers.detail import context_info, context_meta
from query.catalogue import Catalogue
from query.paging.budget import Budget, CursorText, MaxTokens
from query.paging.fitting import LIKE_A_CURSOR, most_that_fit
from query.paging.request import ToolRequest
from query.records import Ledger
from query.replicas import ReplicaSets, Replicated, servings
from query.search.filters import filter_warnings
from query.search.request import ToolNames, intersection
from query.tools.listed import ListDetail, ReplicaSetCost, ToolsInOrder, listed_servers
from shared.catalog import Encoding, IndexedTool, Scope, ToolDefinition, ToolPage, point_id
from shared.errors import BudgetTooSmall
from shared.index.tools import ToolIndex
from shared.text.tokens import PROFILE, is_estimate, json_text

TOOL = "list_available_tools"
# Tools read for one page; more hardly fit any budget, except as names.
READ_TOOLS = 250
# Tools whose names are looked up at once on other servers, as many as in an answer of find_tool.
_NAMES_AT_ONCE = 50
_POINT_BYTES, _REVISION_BYTES = 16, 8
# Pages have a server each and at most READ_TOOLS names; together they take a few megabytes.
_KEPT_PAGES = 64
KEPT_S = 60.0
NAMES_ONLY = "Names only: the next tool does not fit in the form asked for."
_SHORTEST: ListDetail = "name"

_log = structlog.get_logger()


class ListRequest(ToolRequest):
    """The tools to list, and the detail level."""

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
        return json_text([sorted(self.servers or []), sorted(self.groups or [])])


@dataclass(frozen=True, slots=True)
class _Position:
    """The last listed tool, by its server and its point's id, and the highest revision as of the first page."""

    server: str
    point: str
    revision: int

    @classmethod
    def of(cls, sealed: bytes) -> _Position:
        point, rest = sealed[:_POINT_BYTES], sealed[_POINT_BYTES:]
        revision = int.from_bytes(rest[:_REVISION_BYTES])
        return cls(rest[_REVISION_BYTES:].decode(), str(uuid.UUID(bytes=point)), revision)

    def __bytes__(self) -> bytes:
        return uuid.UUID(self.point).bytes + self.revision.to_bytes(_REVISION_BYTES) + self.server.encode()


def read_page(index: ToolIndex, scope: Scope, after: str | None, revision: int) -> ToolPage:  # noqa: ARG001
    """Return a page of the tools of a server, whose record has this revision; the order is that of their points."""
    return index.tools(scope, limit=READ_TOOLS, after=after)


ReadPage = Callable[[ToolIndex, Scope, str | None, int], ToolPage]


class KeptNames:
    """Reads the same pages for lists of names: of their tools' definitions, only the name is left.

    A page is kept until the server's record has another revision, which is written after the tools.
    A run that lost its lease may write tools after the record, so no page is kept for longer than KEPT_S.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._page: Callable[..., ToolPage] = lru_cache(_KEPT_PAGES)(_page_of_names)

    def __call__(self, index: ToolIndex, scope: Scope, after: str | None, revision: int) -> ToolPage:
        """Return a page of the tools of a server, whose record has this revision."""
        return self._page(index, scope, after, revision, self._clock_s() // KEPT_S)


def _page_of_names(index: ToolIndex, scope: Scope, after: str | None, revision: int, _period: float) -> ToolPage:
    page = read_page(index, scope, after, revision)
    named = (replace(tool, definition=ToolDefinition(tool.definition.name, wire="")) for tool in page.tools)
    return ToolPage(tuple(named), page.next_after)


def list_tools(
    request: ListRequest, allowed: Scope, catalogue: Catalogue, caller: str, read: ReadPage = read_page
) -> dict[str, Any]:
    """Return a page of the allowed tools as the JSON object to send, within the tokens of the request.

    A page in the form of names needs only names from `read`.

    Raises:
        IndexUnavailable: the index did not answer.
        CursorInvalid: the cursor is not of this caller and question, was changed, or has expired.
        CursorsUnavailable: a cursor cannot be followed or made now.
        BudgetTooSmall: not even one tool's name fits into the tokens of the request.
    """
    catalogue = catalogue.pinned()
    cursors, binding = catalogue.response_policy.cursors, (caller, TOOL, request.question)
    after = _Position.of(cursors.unseal(request.cursor, *binding)) if request.cursor else None
    page = _tools_after(after, request, allowed, catalogue, read)
    budget = catalogue.response_policy.budget(request.max_tokens, page.encoding)
    detail, count = _fit_detail(request.detail, page, budget)
    is_all = page.is_end and count == len(page.tools)
    cursor = None if is_all else cursors.seal(bytes(_position(page.tools[count - 1], page.revision)), *binding)
    _log.info("tools_listed", listed=count)
    return _response(page, detail, count, cursor, is_shorter=detail != request.detail)


def tools_of(scope: Scope, catalogue: Catalogue) -> Iterator[IndexedTool]:
    """Yield the tools of the scope in the order of their points' ids, as `list_available_tools` walks over a server.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    return _of_server(scope, None, 0, catalogue.pinned().index, read_page)


def _tools_after(
    after: _Position | None, request: ListRequest, allowed: Scope, catalogue: Catalogue, read: ReadPage
) -> ToolsInOrder:
    """Return the tools of the first page, or of the page after a position, in each form that the request allows."""
    scope, encoding, ledger = request.narrow(allowed), request.encoding or catalogue.encoding, catalogue.ledger
    possible, total = (ledger.baseline(part, encoding).model_tokens for part in (allowed, scope))
    revision = after.revision if after else max(ledger.revisions(scope), default=0)
    sets = ledger.replica_sets(scope, until=revision)
    tools = list(islice(_walk(after, sets, scope, catalogue, read), READ_TOOLS + 1))
    searched, callable_tools = Replicated.of(scope, sets), Replicated.of(allowed, ledger.replica_sets(allowed))
    return ToolsInOrder(
        tools=tools[:READ_TOOLS],
        is_end=len(tools) <= READ_TOOLS,
        sets=_costs(tools, sets, scope, ledger, encoding, total),
        names=_names(tools, searched, callable_tools, catalogue.index) if request.detail != _SHORTEST else {},
        encoding=encoding,
        total=total,
        meta=context_meta(total, possible),
        revision=revision,
        # the first page has named the unknown filters
        warnings=[] if after else filter_warnings(request.servers, request.groups, allowed, ledger),
    )


def _walk(
    after: _Position | None, sets: ReplicaSets, scope: Scope, catalogue: Catalogue, read: ReadPage
) -> Iterator[IndexedTool]:
    """Yield the tools of the scope after a position, one server of each replica set after the other."""
    scope = sets.without_copies(scope)
    for server in sorted(sets.representatives):
        if after is None or server >= after.server:
            point = after.point if after and server == after.server else None
            record, only = catalogue.ledger.record(server), replace(scope, servers=frozenset({server}))
            # without a record, the server has gone since the sets were read
            yield from _of_server(only, point, record.revision, catalogue.index, read) if record else ()


def _of_server(
    scope: Scope, after: str | None, revision: int, index: ToolIndex, read: ReadPage
) -> Iterator[IndexedTool]:
    while True:
        page = read(index, scope, after, revision)
        yield from page.tools
        after = page.next_after
        if after is None:
            return


def _costs(
    tools: Sequence[IndexedTool], sets: ReplicaSets, scope: Scope, ledger: Ledger, encoding: Encoding, total: int
) -> dict[str, ReplicaSetCost]:
    replicas = {tool.server_id: sets.replicas(tool.server_id) for tool in tools}
    return {
        server: ReplicaSetCost(servers, context_info(ledger.of_servers(servers, scope, encoding).model_tokens, total))
        for server, servers in replicas.items()
    }


def _names(
    tools: Sequence[IndexedTool], searched: Replicated, allowed: Replicated, index: ToolIndex
) -> Mapping[str, str]:
    """Return the names for calls by the tools' qualified names."""
    parts = (tools[start : start + _NAMES_AT_ONCE] for start in range(0, len(tools), _NAMES_AT_ONCE))
    return {
        qualified_name: serving.name
        for part in parts
        for qualified_name, serving in servings(part, searched, allowed, index).items()
    }


def _position(tool: IndexedTool, revision: int) -> _Position:
    return _Position(tool.server_id, point_id(tool.server_id, tool.definition.name), revision)


def _fit_detail(requested: ListDetail, page: ToolsInOrder, budget: Budget) -> tuple[ListDetail, int]:
    """Return the requested detail level, or the shortest, at which some tools fit, and the number that fits."""
    if not page.tools:
        return requested, 0
    for detail in dict.fromkeys((requested, _SHORTEST)):
        count = _fitting(detail, page, budget, is_shorter=detail != requested)
        if count:
            return detail, count
    raise BudgetTooSmall(f"max_tokens: {budget.max_tokens} are too few for the next tool; ask for more")


def _fitting(detail: ListDetail, page: ToolsInOrder, budget: Budget, *, is_shorter: bool) -> int:
    def fits(count: int) -> bool:
        response = _response(page, detail, count, LIKE_A_CURSOR, is_shorter=is_shorter)
        return budget.admits(json_text(response))

    return most_that_fit(len(page.tools), fits)


def _response(
    page: ToolsInOrder, detail: ListDetail, count: int, cursor: str | None, *, is_shorter: bool
) -> dict[str, Any]:
    servers = listed_servers(page, count, detail)
    response: dict[str, Any] = {
        "toolsByServer": [_object(server) for server in servers],
        "meta": _object(page.meta),
        "encoding": page.encoding,
        "profile": PROFILE,
    }
    response |= {"estimated": True} if is_estimate(page.encoding) else {}
    response |= {"nextCursor": cursor} if cursor else {}
    warnings = [*page.warnings, *([NAMES_ONLY] if is_shorter else [])]
    return response | ({"warnings": warnings} if warnings else {})


def _object(model: BaseModel) -> dict[str, Any]:
    """Return the model as JSON: without texts that were not requested, with null for a missing share."""
    return model.model_dump(mode="json", by_alias=True)
