"""The tools of a caller's toolset, listed under distinct names and run by `call_tool`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mcp.types import CallToolResult, Tool

from query.recent import Recent
from query.tools.call_tool import CALL_TOOL
from query.tools.revisions import WARNINGS_KEY
from query.tools.tool import ToolCallContext, ToolHandler
from query.toolsets.active import with_toolset_scope
from query.toolsets.budget import BudgetResult
from query.toolsets.names import direct_name
from query.toolsets.offered import direct_definition, has_offered_tools, offered_tools, recent_calls

if TYPE_CHECKING:
    from query.caller import Caller
    from query.catalogue import Catalogue
    from query.history.recent_calls import CallCounts
    from query.policy.rules import CallerRules
    from query.replicas.sets import ReplicaSets
    from shared.catalog import IndexedTool

# Toolsets whose tools are kept: each has up to MAX_DIRECT definitions.
_KEPT = 32


@dataclass(frozen=True, slots=True)
class DirectTools:
    """The tools of a toolset by the names that `tools/list` shows, and the budget's verdict on them.

    `callable_by_name` also has the tools that the budget excludes or the policy denies, and every replica's names: an
    earlier `tools/list` may have shown them.
    """

    handlers: Sequence[ToolHandler]
    by_name: Mapping[str, IndexedTool]
    budget: BudgetResult
    callable_by_name: Mapping[str, ToolHandler]

    def handler_named(self, name: str) -> ToolHandler | None:
        """Return the tool that is, or was, listed under this name."""
        return self.callable_by_name.get(name)

    @property
    def meta(self) -> dict[str, Any] | None:
        """Return the budget's warnings for the `_meta` of `tools/list`; None without warnings."""
        return {WARNINGS_KEY: self.budget.warnings} if self.budget.warnings else None


NO_DIRECT_TOOLS = DirectTools((), {}, BudgetResult((), (), "cl100k_base", None), {})


@dataclass(frozen=True, slots=True)
class Toolsets:
    """The toolsets of a catalogue; without `call_tool`, no tool of them is listed."""

    catalogue: Catalogue
    call_tool: ToolHandler | None
    recent: Recent[DirectTools] = field(default_factory=lambda: Recent(most=_KEPT))

    def caller_and_direct(self, caller: Caller) -> tuple[Caller, DirectTools]:
        """Return the caller with its toolset scope, and the toolset's tools; see `direct`."""
        scoped = with_toolset_scope(caller, self.catalogue.index)
        return scoped, self.direct(scoped)

    def direct(self, caller: Caller) -> DirectTools:
        """Return the toolset's tools for a caller with a toolset scope. Reads the index: call it in a thread.

        Raises:
            IndexUnavailable: the index did not answer.
        """
        if self.call_tool is None or not has_offered_tools(caller):
            return NO_DIRECT_TOOLS
        catalogue = self.catalogue.pinned()
        state = catalogue.ledger.state()
        calls, rules = recent_calls(caller, catalogue), catalogue.read_policy().of(caller)
        # with the model: its change replaces the index, without a change of the records
        key = (replace(caller, name=""), calls, rules, catalogue.embedder.model)
        return self.recent.get_or_read(
            key, state, partial(_direct_tools, caller, catalogue, calls, rules, self.call_tool)
        )


def _direct_tools(
    caller: Caller, catalogue: Catalogue, calls: CallCounts, rules: CallerRules, call_tool: ToolHandler
) -> DirectTools:
    budget = offered_tools(caller, catalogue, calls, rules)
    sets, is_leaner = catalogue.ledger.replica_sets(caller.scope), catalogue.response_policy.has_leaner_definitions
    callable_by_name = {
        name: handler
        for tool in (*budget.kept, *budget.excluded, *budget.denied)
        for name, handler in _handlers(tool, sets, call_tool, is_leaner=is_leaner)
    }
    by_name = {_name_of(tool): tool for tool in budget.kept}
    handlers = [callable_by_name[name] for name in by_name if name in callable_by_name]
    return DirectTools(handlers, by_name, budget, callable_by_name)


def _name_of(tool: IndexedTool) -> str:
    return direct_name(tool.server_id, tool.definition.name)


def _handlers(
    tool: IndexedTool, sets: ReplicaSets, call_tool: ToolHandler, *, is_leaner: bool
) -> Iterator[tuple[str, ToolHandler]]:
    """Yield the tool by its name and, with replicas, by their names; nothing where the SDK rejects the definition."""
    has_replicas = _has_replicas(tool, sets)
    for server_id in sets.replicas(tool.server_id) if has_replicas else (tool.server_id,):
        name = direct_name(server_id, tool.definition.name)
        if definition := direct_definition(name, tool, is_leaner=is_leaner):
            yield name, _DirectTool(definition, tool, call_tool, has_replicas=has_replicas)


def _has_replicas(tool: IndexedTool, sets: ReplicaSets) -> bool:
    return tool.server_id in sets.by_server and not sets.has_other_kinds(tool.server_id)


class _DirectTool(ToolHandler):
    """One tool of a toolset; `call_tool` runs it, on any of its replicas."""

    paging = "foreign"

    def __init__(self, definition: Tool, indexed: IndexedTool, call_tool: ToolHandler, *, has_replicas: bool) -> None:
        self.tool = definition
        self.permission = call_tool.permission
        self.sort_key = indexed.qualified_name
        self._call_tool = call_tool
        on_server = {"tool_name": indexed.qualified_name, "server_name": indexed.server_id}
        self._names = {"tool_name": indexed.definition_name} if has_replicas else on_server

    async def call(self, context: ToolCallContext) -> CallToolResult:
        """Return the result of `call_tool` for this tool."""
        wrapped = {**self._names, "parameters": context.arguments}
        return await self._call_tool.call(replace(context, arguments=wrapped))


def toolsets_of(catalogue: Catalogue, handlers: Collection[ToolHandler]) -> Toolsets:
    """Return the toolsets of this catalogue; their tools are called as the `call_tool` of these handlers calls them."""
    call_tool = next((handler for handler in handlers if handler.tool is CALL_TOOL), None)
    return Toolsets(catalogue, call_tool)
