"""`tools/list` of ours, in pages within the budget."""

from __future__ import annotations

from collections.abc import Sequence

from mcp.types import ListToolsResult, Tool

from query.caller import Caller
from query.paging.fitting import items_that_fit
from query.paging.policy import Answers
from query.tools.tool import Offer, listed

PURPOSE = "tools/list"


def page_of_tools(offers: Sequence[Offer], cursor: str | None, caller: Caller, answers: Answers) -> ListToolsResult:
    """Return a page of these tools: ours always on the first, the others by server, as many as fit, at least one.

    While tools come and go between two pages, none is listed twice, and none that stays is left out.

    Raises:
        CursorInvalid: the cursor is not of this caller's list, was changed, or has expired.
        CursorsUnavailable: a cursor cannot be made now.
    """
    is_first = cursor is None
    ours = [listed(offer) for offer in offers if is_first and offer.pages != "foreign"]
    last = "" if cursor is None else answers.cursors.unseal(cursor, caller.name, PURPOSE).decode()
    others = sorted((offer for offer in offers if offer.pages == "foreign"), key=lambda offer: offer.place)
    rest = [offer for offer in others if offer.place > last]
    # a definition cannot be divided: one alone may be larger than the budget
    count = max(
        items_that_fit(_texts([*ours, *(offer.tool for offer in rest)]), answers.budget()) - len(ours),
        0 if is_first else 1,
    )
    page = rest[:count]
    after = page[-1].place if page else ""
    next_cursor = answers.cursors.seal(after.encode(), caller.name, PURPOSE) if count < len(rest) else None
    return ListToolsResult(tools=[*ours, *(offer.tool for offer in page)], next_cursor=next_cursor)


def _texts(tools: Sequence[Tool]) -> list[str]:
    return [tool.model_dump_json(by_alias=True, exclude_none=True) for tool in tools]
