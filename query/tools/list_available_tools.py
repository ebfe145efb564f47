"""The MCP tool `list_available_tools`: all tools that a caller may see, by server, with their cost to a context.

A replica set is listed as its first server, with the tools of that server.
Tools are ordered by server id and point id, which never change, and a cursor is a position in that order.
So no tool of a server comes twice, and no tool that stays is missing.

A server that changed after the first page is listed by itself: other replicas would hide it behind the position.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import groupby, islice
from typing import Any, Literal

import structlog
from mcp.types import Tool, ToolAnnotations
from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema

from query.absent import absences, staleness
from query.answers.answer import (
    CAMEL_CASE,
    ContextInfo,
    ContextMeta,
    ServedBy,
    ToolInfo,
    context_info,
    context_meta,
    is_none,
    served_by,
    shown_definition,
    tool_info,
)
from query.answers.budget import Budget, CursorText, MaxTokens, ToolRequest, most_that_fit
from query.caller import Caller
from query.catalogue import Catalogue
from query.find import FURTHER_LOST
from query.kept import LONGEST_NAME, Recent
from query.records import stated_encoding
from query.replicas import ReplicaSets, Replicated, servings
from query.search.request import ToolNames, filter_warnings, intersection
from query.tool import CatalogueTool, input_schema
from shared.catalog import Encoding, IndexedTool, Scope, ToolDefinition, ToolPage, point_id
from shared.errors import BudgetTooSmall, CursorsUnavailable
from shared.index.tools import ToolIndex
from shared.text.tokens import PROFILE, json_text

# Tools read for one page; more hardly fit any budget, except as names.
READ_TOOLS = 250
# Tools whose names are looked up at once on other servers, as many as in an answer of find_tool.
_NAMES_AT_ONCE = 50
# Pages have a server each and at most READ_TOOLS names; together they take a few megabytes.
_KEPT_PAGES = 64
NAMES_ONLY = "Names only: the next tool does not fit in the form asked for."

ListDetail = Literal["name", "summary", "detailed", "full"]
_SHORTEST: ListDetail = "name"

_log = structlog.get_logger()


class ListRequest(ToolRequest):
    """The tools to list, and the detail level."""

    servers: ToolNames | None = None
    """Only these servers."""
    groups: ToolNames | None = None
    """Only these groups."""
    detail: ListDetail = _SHORTEST
    encoding: SkipJsonSchema[Encoding | None] = None
    """What the tokens are counted in."""
    max_tokens: SkipJsonSchema[MaxTokens | None] = None
    """The most tokens of the answer."""
    cursor: CursorText | None = None
    """nextCursor."""

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


LIST_AVAILABLE_TOOLS = Tool(
    name="list_available_tools",
    description="List all tools by server, with what each would cost your context.",
    input_schema=input_schema(ListRequest),
    annotations=ToolAnnotations(title="List tools", read_only_hint=True, idempotent_hint=True, open_world_hint=False),
)


class ListAvailableTools(CatalogueTool[ListRequest]):
    """Lists the tools of a catalogue."""

    tool = LIST_AVAILABLE_TOOLS
    paging = "own"
    request_model = ListRequest

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._names = KeptNames()

    def respond(self, request: ListRequest, caller: Caller) -> dict[str, Any]:
        """Return a page of the listing."""
        read = self._names if request.detail == _SHORTEST else read_page
        return list_tools(request, self._catalogue.scope(caller), self._catalogue, caller.name, read)


def read_page(index: ToolIndex, scope: Scope, after: str | None, revision: int) -> ToolPage:  # noqa: ARG001
    """Return a page of the tools of a server, whose record has this revision; the order is that of their points."""
    return index.tools(scope, limit=READ_TOOLS, after=after)


ReadPage = Callable[[ToolIndex, Scope, str | None, int], ToolPage]


class KeptNames:
    """Reads the same pages for lists of names: of their tools' definitions, only the name is left.

    A page is kept until the server's record has another revision, which is written after the tools.
    A run that lost its lease may write tools after the record, so no page is kept for longer than RECENT_S.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._recent: Recent[ToolPage] = Recent(clock_s, most=_KEPT_PAGES)

    def __call__(self, index: ToolIndex, scope: Scope, after: str | None, revision: int) -> ToolPage:
        """Return a page of the tools of a server, whose record has this revision."""

        def read() -> ToolPage:
            page = read_page(index, scope, after, revision)
            named = (replace(tool, definition=ToolDefinition(tool.definition.name, wire="")) for tool in page.tools)
            return ToolPage(tuple(named), page.next_after)

        return self._recent.get_or_read((scope, after, revision), index, read)


@dataclass(frozen=True, slots=True)
class _Position:
    """The last listed tool, by its server and its point's id, and the highest revision as of the first page."""

    server: str
    point: str
    revision: int


@dataclass(frozen=True, slots=True)
class _ToolsInOrder:
    """Tools in their order, of which a page shows the first; `is_end`: no further tools follow these.

    `sets` has the replicas of each server, itself included, and the cost of all their tools. `names` has the names for
    `call_tool` by qualified name, if requested. `total` is the cost of all requested tools, of which all shares are.
    `revision` is the highest as of the first page. `warnings` are about the filters of the request. `cursor` is of the
    page behind the shown tools, or stands in for it.
    """

    tools: Sequence[IndexedTool]
    is_end: bool
    sets: Mapping[str, tuple[Sequence[str], ContextInfo]]
    names: Mapping[str, str]
    encoding: Encoding
    total: int
    meta: ContextMeta
    revision: int
    warnings: Sequence[str]
    cursor: str | None

    def is_all(self, count: int) -> bool:
        """Return whether nothing follows the first `count` tools."""
        return self.is_end and count == len(self.tools)


def list_tools(
    request: ListRequest, allowed: Scope, catalogue: Catalogue, caller: str, read: ReadPage = read_page
) -> dict[str, Any]:
    """Return a page of the allowed tools as the JSON object to send, within the tokens of the request.

    A page in the form of names needs only names from `read`. A page whose cursor cannot be stored says so.

    Raises:
        IndexUnavailable: the index did not answer.
        CursorInvalid: the cursor is not of this caller and question, was changed, or has expired.
        CursorsUnavailable: the request's cursor cannot be read now.
        BudgetTooSmall: not even one tool's name fits into the tokens of the request.
    """
    catalogue = catalogue.pinned()
    kept, binding = catalogue.response_policy.kept, (caller, LIST_AVAILABLE_TOOLS.name, request.question)
    after = _Position(*json.loads(kept.get(request.cursor, *binding))) if request.cursor else None
    page = _tools_after(after, request, allowed, catalogue, read)
    budget = catalogue.response_policy.budget(request.max_tokens, page.encoding)
    detail, count = _fit_detail(request.detail, page, budget)
    if not page.is_all(count):
        last = page.tools[count - 1]
        position = _Position(last.server_id, point_id(last.server_id, last.definition.name), page.revision)
        try:
            page = replace(page, cursor=kept.put(json.dumps(astuple(position)).encode(), *binding))
        except CursorsUnavailable as error:
            _log.warning("page_not_stored", tool=LIST_AVAILABLE_TOOLS.name, reason=str(error))
            page = replace(page, cursor=None)
            detail, count = _fit_detail(request.detail, page, budget)
    _log.info("tools_listed", listed=count)
    return _response(page, detail, count, is_shorter=detail != request.detail)


def tools_of(scope: Scope, catalogue: Catalogue) -> Iterator[IndexedTool]:
    """Yield the tools of the scope in the order of their points' ids, as `list_available_tools` walks over a server.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    return _of_server(scope, None, 0, catalogue.pinned().index, read_page)


def _tools_after(
    after: _Position | None, request: ListRequest, allowed: Scope, catalogue: Catalogue, read: ReadPage
) -> _ToolsInOrder:
    """Return the tools of the first page, or of the page after a position, in each form that the request allows."""
    scope, encoding, ledger = request.narrow(allowed), request.encoding or catalogue.encoding, catalogue.ledger
    possible, total = (ledger.baseline(part, encoding).model_tokens for part in (allowed, scope))
    revision = after.revision if after else max(ledger.revisions(scope), default=0)
    sets = ledger.replica_sets(scope, until=revision)
    tools = list(islice(_walk(after, sets, scope, catalogue, read), READ_TOOLS + 1))
    replicas = {tool.server_id: sets.replicas(tool.server_id) for tool in tools}
    costs = {server: ledger.of_servers(of_set, scope, encoding).model_tokens for server, of_set in replicas.items()}
    names: dict[str, str] = {}
    if request.detail != _SHORTEST:
        searched, callable_tools = Replicated.of(scope, sets), Replicated.of(allowed, ledger.replica_sets(allowed))
        for start in range(0, len(tools), _NAMES_AT_ONCE):
            part = servings(tools[start : start + _NAMES_AT_ONCE], searched, callable_tools, catalogue.index)
            names |= {qualified_name: serving.name for qualified_name, serving in part.items()}
    return _ToolsInOrder(
        tools=tools[:READ_TOOLS],
        is_end=len(tools) <= READ_TOOLS,
        sets={server: (of_set, context_info(costs[server], total)) for server, of_set in replicas.items()},
        names=names,
        encoding=encoding,
        total=total,
        meta=context_meta(total, possible),
        revision=revision,
        # the first page has named the unknown filters, and the servers without tools
        warnings=[]
        if after
        else [
            *filter_warnings(request.servers, request.groups, allowed, ledger),
            *absences(ledger.absent(scope), request.servers or (), all_unreached=True),
            *staleness(record.server_id for record in ledger.stale(scope)),
        ],
        cursor=LONGEST_NAME,
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


def _fit_detail(requested: ListDetail, page: _ToolsInOrder, budget: Budget) -> tuple[ListDetail, int]:
    """Return the requested detail level, or the shortest, at which some tools fit, and the number that fits."""
    if not page.tools:
        return requested, 0
    for detail in dict.fromkeys((requested, _SHORTEST)):

        def fits(count: int, detail: ListDetail = detail) -> bool:
            return budget.admits(json_text(_response(page, detail, count, is_shorter=detail != requested)))

        if count := most_that_fit(len(page.tools), fits):
            return detail, count
    raise BudgetTooSmall(f"max_tokens: {budget.max_tokens} are too few for the next tool; ask for more")


def _response(page: _ToolsInOrder, detail: ListDetail, count: int, *, is_shorter: bool) -> dict[str, Any]:
    response: dict[str, Any] = {
        "toolsByServer": [_object(server) for server in _listed_servers(page, count, detail)],
        "meta": _object(page.meta),
        "profile": PROFILE,
        **stated_encoding(page.encoding),
    }
    warnings = [*page.warnings, *([NAMES_ONLY] if is_shorter else [])]
    if not page.is_all(count):
        response |= {"nextCursor": page.cursor} if page.cursor else {}
        warnings += [] if page.cursor else [FURTHER_LOST]
    return response | ({"warnings": warnings} if warnings else {})


def _object(model: BaseModel) -> dict[str, Any]:
    """Return the model as JSON: without texts that were not requested, with null for a missing share."""
    return model.model_dump(mode="json", by_alias=True)


class ListedServer(BaseModel):
    """A server with the cost of all its listed tools, and with those of this page: as names, or as tools.

    A server with replicas represents them: the costs are those of all.

    `names` are separated by spaces. A name with other characters than an identifier's is quoted as in a shell.
    """

    model_config = CAMEL_CASE

    server_name: str
    served_by: ServedBy | None = Field(default=None, exclude_if=is_none)
    context: ContextInfo
    names: str | None = Field(default=None, exclude_if=is_none)
    tools: list[ToolInfo] | None = Field(default=None, exclude_if=is_none)


def _listed_servers(page: _ToolsInOrder, count: int, detail: ListDetail) -> Iterator[ListedServer]:
    """Yield the first tools of the page by server."""
    for server, tools in groupby(page.tools[:count], key=lambda tool: tool.server_id):
        replicas, context = page.sets[server]
        shown: dict[str, Any]
        if detail == _SHORTEST:
            shown = {"names": shlex.join(tool.definition.name for tool in tools)}
        else:
            shown = {
                "tools": [
                    tool_info(
                        tool,
                        page.encoding,
                        page.total,
                        shown_definition(tool.definition, detail),
                        page.names.get(tool.qualified_name),
                        len(replicas),
                    )
                    for tool in tools
                ]
            }
        yield ListedServer(server_name=server, served_by=served_by(replicas), context=context, **shown)
