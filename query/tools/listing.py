"""All tools that a caller may see, by server, with what each costs a context.

Tools come in the order of their servers' ids and their points' ids, both of which never change, and a cursor is a
place in that order: so no tool comes twice, and none that was there throughout is left out.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from query.catalogue import Catalogue
from query.paging.budget import Budget, CursorText, MaxTokens, json_text
from query.paging.fitting import most_that_fit
from query.response.find_response import Form, sendable
from query.response.summary import summary
from query.savings.savings import Context, context
from query.search.request import Names, both
from shared.catalog import Encoding, IndexedTool, Scope, point_id
from shared.errors import BudgetTooSmall
from shared.text.tokens import is_estimate

TOOL = "list_available_tools"
# Tools read for one page; more hardly fit into any budget.
READ = 250
_POINT_BYTES = 16
NAMES_ONLY = "Names only: the next tool does not fit in the form asked for."
# As long, and as many tokens, as a cursor commonly has: to measure with.
_LIKE_A_CURSOR = "q7Zk0XvB3nTfYw9LrD5sHcJ2mPgA8eUo4iKxVb1NtQyRz6WlSdFhGjMpCaEuOvIkB0nXw5T3YZ"


class ListRequest(BaseModel):
    """Which tools to list, and how."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    servers: Names | None = None
    """Only these servers."""
    groups: Names | None = None
    """Only tools of these groups."""
    detail: Literal["name", "summary", "detailed"] = "name"
    encoding: Encoding | None = None
    max_tokens: MaxTokens | None = None
    cursor: CursorText | None = None
    """nextCursor of the answer before."""

    def scope_within(self, allowed: Scope) -> Scope:
        """Return the part of what is allowed that was asked for."""
        return replace(
            allowed,
            servers=both(allowed.servers, self.servers),
            groups=both(allowed.groups, self.groups),
        )

    @property
    def question(self) -> str:
        """Return what a cursor is bound to: which tools are listed."""
        return json_text([sorted(self.servers or []), sorted(self.groups or []), self.servers == [], self.groups == []])


def _is_none(value: object) -> bool:
    return value is None


class ListedTool(BaseModel):
    """A tool and what its definition costs."""

    model_config = ConfigDict(frozen=True)

    name: str
    context: Context
    summary: str | None = Field(default=None, exclude_if=_is_none)
    definition: dict[str, Any] | None = Field(default=None, exclude_if=_is_none)


class ListedServer(BaseModel):
    """The tools of a server on this page, and what all of them that the caller asked for cost."""

    model_config = ConfigDict(frozen=True)

    server: str
    context: Context
    tools: list[ListedTool]


@dataclass(frozen=True, slots=True)
class Available:
    """A page of tools in their order, before it is decided how many of them are shown; `is_end`: no more follow."""

    tools: Sequence[IndexedTool]
    is_end: bool
    contexts: dict[str, Context]
    listed: Context
    total: int


def list_tools(request: ListRequest, allowed: Scope, catalogue: Catalogue, caller: str) -> dict[str, Any]:
    """Return a page of the allowed tools as the JSON object that is sent, within the tokens of the request.

    Raises:
        IndexUnavailable: the index did not answer.
        CursorInvalid: the cursor is not of this caller and question, was changed, or has expired.
        CursorsUnavailable: a cursor cannot be followed or made now.
        BudgetTooSmall: not even one tool's name fits into the tokens of the request.
    """
    catalogue = catalogue.pinned()
    scope, encoding = request.scope_within(allowed), request.encoding or catalogue.encoding
    cursors, binding = catalogue.answers.cursors, (caller, TOOL, request.question)
    place = cursors.unseal(request.cursor, *binding) if request.cursor else b""
    found = _available(place, scope, allowed, catalogue, encoding)
    budget = catalogue.answers.budget(request.max_tokens, encoding)
    form, count = _form(request.detail, found, budget, encoding)
    is_all = found.is_end and count == len(found.tools)
    cursor = None if is_all else cursors.seal(_place(found.tools[count - 1]), *binding)
    return _answer(found, form, count, encoding, cursor, is_shorter=form != request.detail)


def tools_of(scope: Scope, catalogue: Catalogue) -> Iterator[IndexedTool]:
    """Yield the tools of the scope in the order of their points' ids, as `list_available_tools` walks over a server.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    return _of_server(scope, None, catalogue.pinned())


def _available(place: bytes, scope: Scope, allowed: Scope, catalogue: Catalogue, encoding: Encoding) -> Available:
    ledger = catalogue.ledger
    total, listed = ledger.baseline(allowed, encoding).tokens, ledger.baseline(scope, encoding).tokens
    tools = list(islice(_walk(place, scope, catalogue), READ + 1))
    page = tools[:READ]
    sums = {
        server: ledger.of_server(server, scope, encoding).tokens
        for server in dict.fromkeys(tool.server_id for tool in page)
    }
    contexts = {server: context(tokens, total) for server, tokens in sums.items()}
    return Available(page, len(tools) <= READ, contexts, context(listed, total), total)


def _walk(place: bytes, scope: Scope, catalogue: Catalogue) -> Iterator[IndexedTool]:
    """Yield the tools of the scope behind a place, server by server."""
    point, at = place[:_POINT_BYTES], place[_POINT_BYTES:].decode()
    for server in catalogue.ledger.servers(scope):
        if server >= at:
            after = str(uuid.UUID(bytes=point)) if point and server == at else None
            yield from _of_server(replace(scope, servers=frozenset({server})), after, catalogue)


def _of_server(scope: Scope, after: str | None, catalogue: Catalogue) -> Iterator[IndexedTool]:
    while True:
        page = catalogue.index.tools(scope, limit=READ, after=after)
        yield from page.tools
        after = page.next_after
        if after is None:
            return


def _place(tool: IndexedTool) -> bytes:
    return uuid.UUID(point_id(tool.server_id, tool.definition.name)).bytes + tool.server_id.encode()


def _form(wished: Form, found: Available, budget: Budget, encoding: Encoding) -> tuple[Form, int]:
    """Return the form, the wished one or the shortest, in which some tools fit, and how many of them do."""
    if not found.tools:
        return wished, 0
    for form in dict.fromkeys((wished, _SHORTEST)):
        count = _fitting(form, found, budget, encoding, is_shorter=form != wished)
        if count:
            return form, count
    raise BudgetTooSmall(f"max_tokens: {budget.max_tokens} are too few for the next tool; ask for more")


def _fitting(form: Form, found: Available, budget: Budget, encoding: Encoding, *, is_shorter: bool) -> int:
    def fits(count: int) -> bool:
        answer = _answer(found, form, count, encoding, _LIKE_A_CURSOR, is_shorter=is_shorter)
        return budget.admits(json_text(answer))

    return most_that_fit(len(found.tools), fits)


_SHORTEST: Form = "name"


def _answer(
    found: Available, form: Form, count: int, encoding: Encoding, cursor: str | None, *, is_shorter: bool
) -> dict[str, Any]:
    servers = [
        ListedServer(
            server=server,
            context=found.contexts[server],
            tools=[_listed(tool, form, encoding, found.total) for tool in tools],
        )
        for server, tools in groupby(found.tools[:count], key=lambda tool: tool.server_id)
    ]
    answer: dict[str, Any] = {
        "toolsByServer": [_object(server) for server in servers],
        "meta": {"context": _object(found.listed), "totalPossibleContext": found.total},
        "encoding": encoding,
    }
    answer |= {"estimated": True} if is_estimate(encoding) else {}
    answer |= {"nextCursor": cursor} if cursor else {}
    return answer | ({"warnings": [NAMES_ONLY]} if is_shorter else {})


def _listed(tool: IndexedTool, form: Form, encoding: Encoding, total: int) -> ListedTool:
    return ListedTool(
        name=tool.definition.name,
        context=context(tool.token_counts.get(encoding), total),
        summary=summary(tool.definition).encode("utf-8", "replace").decode() if form == "summary" else None,
        definition=sendable(tool.definition) if form == "detailed" else None,
    )


def _object(model: BaseModel) -> dict[str, Any]:
    """Return the model as it is sent: without texts not asked for, with null for a part that does not apply."""
    return model.model_dump(mode="json", by_alias=True)
