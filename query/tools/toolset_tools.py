"""The tools of a caller's toolset as tools of our own, called by the same path as `call_tool`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mcp.types import CallToolResult, Tool
from pydantic import ValidationError

from query.server.paging import CALL_TOOL
from query.tools.tool import ToolCallContext, ToolHandler
from query.toolsets.active import with_toolset_scope
from query.toolsets.budget import BudgetResult, apply_budget
from query.toolsets.names import direct_tool_names

if TYPE_CHECKING:
    from query.caller import Caller
    from query.catalogue import Catalogue
    from shared.catalog import IndexedTool

# More are not offered directly: they are searched for and called with call_tool.
MAX_DIRECT = 256
WARNINGS_KEY = "dev.toolscale/warnings"


@dataclass(frozen=True, slots=True)
class DirectTools:
    """The tools that are offered directly, by the names they have there, and what was left out for the budget."""

    handlers: Sequence[ToolHandler]
    by_name: Mapping[str, IndexedTool]
    budget: BudgetResult

    def handler_named(self, name: str) -> ToolHandler | None:
        """Return what is offered under this name."""
        return next((handler for handler in self.handlers if handler.tool.name == name), None)

    @property
    def meta(self) -> dict[str, Any] | None:
        """Return what `tools/list` says beside the tools; None: nothing was left out, nothing costs too much."""
        return {WARNINGS_KEY: self.budget.warnings} if self.budget.warnings else None


NO_DIRECT_TOOLS = DirectTools((), {}, BudgetResult((), (), "cl100k_base", None))


@dataclass(frozen=True, slots=True)
class Toolsets:
    """The toolsets of a catalogue, for the server that offers them. All methods read the index, so run in a thread.

    `call` is our `call_tool`; without it, nothing can be called, and nothing is offered directly.
    """

    catalogue: Catalogue
    call: ToolHandler | None
    reserved: frozenset[str]

    def with_toolset_scope(self, caller: Caller) -> Caller:
        """Return the caller with what its toolset selects.

        Raises:
            IndexUnavailable: the index did not answer.
        """
        return with_toolset_scope(caller, self.catalogue.index)

    def direct(self, caller: Caller) -> DirectTools:
        """Return what of its toolset this activated caller is offered directly.

        Raises:
            IndexUnavailable: the index did not answer.
        """
        budget = apply_budget(self._tools(caller), caller, self.catalogue.encoding)
        names = direct_tool_names([*budget.kept, *budget.excluded], self.reserved)
        kept = {tool.qualified_name for tool in budget.kept}
        by_name = {name: tool for name, tool in names.items() if tool.qualified_name in kept}
        return DirectTools([self._handler(name, tool) for name, tool in by_name.items()], by_name, budget)

    def _tools(self, caller: Caller) -> list[IndexedTool]:
        if caller.selection is None or self.call is None or self.call.permission not in caller.permissions:
            return []
        page = self.catalogue.pinned().index.tools(caller.scope, limit=MAX_DIRECT)
        usable = [tool for tool in page.tools if _tool(tool.definition.name, tool)]
        return sorted(usable, key=lambda tool: tool.qualified_name)

    def _handler(self, name: str, tool: IndexedTool) -> ToolHandler:
        call, listed = self.call, _tool(name, tool)
        if call is None or listed is None:
            raise ValueError(f"{tool.qualified_name} cannot be offered")

        async def handle(context: ToolCallContext) -> CallToolResult:
            wrapped = {"tool_name": tool.qualified_name, "server_name": tool.server_id, "parameters": context.arguments}
            return await call.handle(replace(context, arguments=wrapped))

        return ToolHandler(listed, call.permission, handle, paging="foreign", sort_key=tool.qualified_name)


def toolsets_of(catalogue: Catalogue, handlers: Collection[ToolHandler]) -> Toolsets:
    """Return the toolsets of this catalogue, offered beside our own tools."""
    call = next((offer for offer in handlers if offer.tool.name == CALL_TOOL), None)
    return Toolsets(catalogue, call, frozenset(offer.tool.name for offer in handlers))


def _tool(name: str, tool: IndexedTool) -> Tool | None:
    """Return the tool's own definition under this name; None where the SDK would refuse it.

    Without a schema of its output: a long answer comes in pages, which are parts of its text.
    """
    try:
        declared = Tool.model_validate(tool.definition.as_object())
    except ValidationError:
        return None
    return declared.model_copy(update={"name": name, "output_schema": None})
