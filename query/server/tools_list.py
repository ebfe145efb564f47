"""`tools/list` in pages within the budget."""

from __future__ import annotations

from collections.abc import Sequence

from mcp.types import ListToolsResult

from query.caller import Caller
from query.paging.fitting import items_that_fit
from query.paging.policy import ResponsePolicy
from query.tools.tool import ToolHandler, listed

PURPOSE = "tools/list"


def page_of_tools(
    handlers: Sequence[ToolHandler], cursor: str | None, caller: Caller, policy: ResponsePolicy
) -> ListToolsResult:
    """Return a page of these tools: built-in tools on the first, then toolset tools in order, as many as fit.

    Every later page has at least one tool. If tools come and go between two pages, no tool is listed twice and no
    tool that stays is missing.

    Raises:
        CursorInvalid: the cursor is not of this caller's list, was changed, or has expired.
        CursorsUnavailable: a cursor cannot be made now.
    """
    is_first = cursor is None
    builtin = [offer for offer in handlers if is_first and offer.paging != "foreign"]
    last = "" if cursor is None else policy.cursors.unseal(cursor, caller.name, PURPOSE).decode()
    others = sorted((offer for offer in handlers if offer.paging == "foreign"), key=lambda offer: offer.sort_key)
    rest = [offer for offer in others if offer.sort_key > last]
    if not rest:
        return ListToolsResult(tools=list(map(listed, builtin)))  # counting their tokens would load a vocabulary
    # a definition cannot be divided, so a single one may exceed the budget
    texts = [offer.listed_text for offer in (*builtin, *rest)]
    count = max(items_that_fit(texts, policy.budget()) - len(builtin), 0 if is_first else 1)
    page = rest[:count]
    after = page[-1].sort_key if page else ""
    next_cursor = policy.cursors.seal(after.encode(), caller.name, PURPOSE) if count < len(rest) else None
    return ListToolsResult(tools=list(map(listed, [*builtin, *page])), next_cursor=next_cursor)
