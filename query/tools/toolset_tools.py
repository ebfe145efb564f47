"""The tools of a caller's toolset as tools of our own, called by the same path as `call_tool`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mcp.types import CallToolResult, Tool
from pydantic import ValidationError

from query.server.paging import CALL_TOOL
from query.tools.tool import Asked, Offer
from query.toolsets.active import activated
from query.toolsets.budget import Spending, spend
from query.toolsets.names import offered_names

if TYPE_CHECKING:
    from query.caller import Caller
    from query.catalogue import Catalogue
    from shared.catalog import IndexedTool

# More are not offered directly: they are searched for and called with call_tool.
MAX_DIRECT = 256
LEFT_OUT_KEY = "dev.toolscale/warnings"


@dataclass(frozen=True, slots=True)
class Direct:
    """The tools that are offered directly, by the names they have there, and what was left out for the budget."""

    offers: Sequence[Offer]
    by_name: Mapping[str, IndexedTool]
    spending: Spending

    def named(self, name: str) -> Offer | None:
        """Return what is offered under this name."""
        return next((offer for offer in self.offers if offer.tool.name == name), None)

    @property
    def meta(self) -> dict[str, Any] | None:
        """Return what `tools/list` says beside the tools; None: nothing was left out, nothing costs too much."""
        return {LEFT_OUT_KEY: self.spending.warnings} if self.spending.warnings else None


NOTHING_DIRECT = Direct((), {}, Spending((), (), "cl100k_base", None))


@dataclass(frozen=True, slots=True)
class Toolsets:
    """The toolsets of a catalogue, for the server that offers them. All methods read the index, so run in a thread.

    `call` is our `call_tool`; without it, nothing can be called, and nothing is offered directly.
    """

    catalogue: Catalogue
    call: Offer | None
    reserved: frozenset[str]

    def activated(self, caller: Caller) -> Caller:
        """Return the caller with what its toolset selects.

        Raises:
            IndexUnavailable: the index did not answer.
        """
        return activated(caller, self.catalogue.index)

    def direct(self, caller: Caller) -> Direct:
        """Return what of its toolset this activated caller is offered directly.

        Raises:
            IndexUnavailable: the index did not answer.
        """
        spending = spend(self._tools(caller), caller, self.catalogue.encoding)
        names = offered_names([*spending.kept, *spending.left_out], self.reserved)
        kept = {tool.qualified_name for tool in spending.kept}
        by_name = {name: tool for name, tool in names.items() if tool.qualified_name in kept}
        return Direct([self._offer(name, tool) for name, tool in by_name.items()], by_name, spending)

    def _tools(self, caller: Caller) -> list[IndexedTool]:
        if caller.within is None or self.call is None or self.call.permission not in caller.permissions:
            return []
        page = self.catalogue.pinned().index.tools(caller.scope, limit=MAX_DIRECT)
        usable = [tool for tool in page.tools if _tool(tool.definition.name, tool)]
        return sorted(usable, key=lambda tool: tool.qualified_name)

    def _offer(self, name: str, tool: IndexedTool) -> Offer:
        call, listed = self.call, _tool(name, tool)
        if call is None or listed is None:
            raise ValueError(f"{tool.qualified_name} cannot be offered")

        async def answer(asked: Asked) -> CallToolResult:
            wrapped = {"tool_name": tool.qualified_name, "server_name": tool.server_id, "parameters": asked.arguments}
            return await call.answer(replace(asked, arguments=wrapped))

        return Offer(listed, call.permission, answer, pages="foreign", place=tool.qualified_name)


def toolsets_of(catalogue: Catalogue, ours: Collection[Offer]) -> Toolsets:
    """Return the toolsets of this catalogue, offered beside our own tools."""
    call = next((offer for offer in ours if offer.tool.name == CALL_TOOL), None)
    return Toolsets(catalogue, call, frozenset(offer.tool.name for offer in ours))


def _tool(name: str, tool: IndexedTool) -> Tool | None:
    """Return the tool's own definition under this name; None where the SDK would refuse it.

    Without a schema of its output: a long answer comes in pages, which are parts of its text.
    """
    try:
        declared = Tool.model_validate(tool.definition.as_object())
    except ValidationError:
        return None
    return declared.model_copy(update={"name": name, "output_schema": None})
