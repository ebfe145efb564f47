"""The tools of a caller's toolset, listed under distinct names and run by `call_tool`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from mcp.types import CallToolResult, Tool

from query.answers.links import Link
from query.calling.call import ResolvedTool, permitted_tool
from query.tool import ToolCallContext, ToolHandler
from query.tools.call_tool import CALL_TOOL
from query.tools.revisions import WARNINGS_KEY
from query.toolsets.offers import Offer, Offers, direct_name, has_offered_tools, with_toolset_scope
from shared.errors import CallDenied, ToolExcluded

if TYPE_CHECKING:
    from query.caller import Caller
    from query.catalogue import Catalogue
    from query.replicas import ReplicaSets
    from shared.catalog import IndexedTool

# Toolsets whose tools are kept: each has up to MAX_DIRECT definitions.
_KEPT = 32
_UI = "ui://"
# The key of the extension's first drafts, which some servers send as well.
_EARLIER_UI = "ui/resourceUri"


@dataclass(frozen=True, slots=True)
class DirectTools:
    """The tools of a toolset by the names that `tools/list` shows, and the warnings of its offer.

    `callable_by_name` also has the tools that are left out, and every replica's names: an earlier
    `tools/list` may have shown them. `ui` leads from the `ui://` URIs that their definitions show to the servers' own.
    """

    handlers: Sequence[ToolHandler] = ()
    warnings: Sequence[str] = ()
    callable_by_name: Mapping[str, ToolHandler] = field(default_factory=dict[str, ToolHandler])
    ui: Mapping[str, Link] = field(default_factory=dict[str, Link])

    def handler_named(self, name: str) -> ToolHandler | None:
        """Return the tool that is, or was, listed under this name."""
        return self.callable_by_name.get(name)

    @property
    def meta(self) -> dict[str, Any] | None:
        """Return the warnings for the `_meta` of `tools/list`; None without warnings."""
        return {WARNINGS_KEY: list(self.warnings)} if self.warnings else None


NO_DIRECT_TOOLS = DirectTools()


class Toolsets:
    """The toolsets of a catalogue; without `call_tool`, no tool of them is listed."""

    def __init__(self, catalogue: Catalogue, call_tool: ToolHandler | None) -> None:
        self.catalogue = catalogue
        self._offers = Offers(catalogue)
        self._call_tool = call_tool
        self._direct_tools = lru_cache(_KEPT)(direct_tools)

    def caller_and_direct(self, caller: Caller) -> tuple[Caller, DirectTools]:
        """Return the caller with its toolset scope, and the toolset's tools; see `direct`."""
        scoped = with_toolset_scope(caller, self.catalogue.index)
        return scoped, self.direct(scoped)

    def direct(self, caller: Caller) -> DirectTools:
        """Return the toolset's tools for a caller with a toolset scope. Reads the index: call it in a thread.

        Raises:
            IndexUnavailable: the index did not answer.
        """
        if self._call_tool is None or not has_offered_tools(caller):
            return NO_DIRECT_TOOLS
        self.catalogue.ledger.refresh()
        return self._direct_tools(self._offers.of(caller), self._call_tool)

    def servers(self, caller: Caller) -> dict[str, ResolvedTool]:
        """Return the servers with a tool of the toolset that the caller may call, by id, each with one such tool.

        Of replicas, the representative stands for all. Reads the index: call it in a thread.

        Raises:
            IndexUnavailable: the index did not answer.
        """
        if not has_offered_tools(caller):
            return {}
        self.catalogue.ledger.refresh()
        offer, ledger = self._offers.of(caller), self.catalogue.ledger
        servers: dict[str, ResolvedTool] = {}
        for tool in offer.found:
            if tool.server_id not in servers:
                records = tuple(filter(None, map(ledger.record, offer.sets.replicas(tool.server_id))))
                with suppress(CallDenied, ToolExcluded):
                    servers[tool.server_id] = permitted_tool(tool, records, caller, self.catalogue)
        return servers


def direct_tools(offer: Offer, call_tool: ToolHandler) -> DirectTools:
    """Return the tools of an offer, which `call_tool` runs."""
    by_name: dict[str, ToolHandler] = {}
    ui: dict[str, Link] = {}
    for tool in offer.found:
        if definition := offer.definitions.get(tool.qualified_name):
            for server_id, arguments in _calls(tool, offer.sets):
                name = direct_name(server_id, tool.definition.name)
                named = definition.model_copy(update={"name": name})
                if uri := ui_of(definition):
                    shown = f"{_UI}toolscale/{quote(server_id, safe='')}/{uri.removeprefix(_UI)}"
                    named = named.model_copy(update={"meta": _with_ui(named.meta, shown)})
                    ui[shown] = Link(f"{server_id}:{tool.definition.name}", uri)
                by_name[name] = _DirectTool(named, tool.qualified_name, call_tool, arguments)
    handlers = [by_name[direct_name(tool.server_id, tool.definition.name)] for tool in offer.budget.kept]
    return DirectTools(handlers, offer.warnings, by_name, ui)


def ui_of(tool: Tool) -> str | None:
    """Return the URI of the user interface that a tool declares (`_meta.ui`, the extension MCP Apps), None without."""
    match tool.meta:
        case {"ui": {"resourceUri": str(uri)}} if uri.startswith(_UI):
            return uri
        case _:
            return None


def _with_ui(meta: Mapping[str, Any] | None, uri: str) -> dict[str, Any]:
    """Return the metadata with this URI: those of two servers may be equal, and a host reads it before any call."""
    declared: Mapping[str, Any] = meta or {}
    earlier = {_EARLIER_UI: uri} if _EARLIER_UI in declared else {}
    return {**declared, **earlier, "ui": {**declared["ui"], "resourceUri": uri}}


def _calls(tool: IndexedTool, sets: ReplicaSets) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the servers under whose names the tool is called, with the arguments of `call_tool` for it.

    `tool@digest` stands for any replica; a name with a colon would begin with a server.
    """
    name = tool.definition.name
    is_replicated = tool.server_id in sets.by_server and not sets.has_other_kinds(tool.server_id)
    for server_id in sets.replicas(tool.server_id) if is_replicated else (tool.server_id,):
        if is_replicated and tool.digest and ":" not in name:
            yield server_id, {"tool_name": tool.definition_name}
        else:
            yield server_id, {"tool_name": f"{server_id}:{name}", "server_name": server_id}


class _DirectTool(ToolHandler):
    """One tool of a toolset; `call_tool` runs it with these arguments."""

    paging = "foreign"

    def __init__(self, tool: Tool, sort_key: str, call_tool: ToolHandler, arguments: dict[str, Any]) -> None:
        self.tool = tool
        self.permission = call_tool.permission
        self.sort_key = sort_key
        self._call_tool = call_tool
        self._arguments = arguments

    async def call(self, context: ToolCallContext) -> CallToolResult:
        """Return the result of `call_tool` for this tool."""
        wrapped = {**self._arguments, "parameters": context.arguments}
        return await self._call_tool.call(replace(context, arguments=wrapped))


def toolsets_of(catalogue: Catalogue, handlers: Collection[ToolHandler]) -> Toolsets:
    """Return the toolsets of this catalogue; their tools are called as the `call_tool` of these handlers calls them."""
    call_tool = next((handler for handler in handlers if handler.tool is CALL_TOOL), None)
    return Toolsets(catalogue, call_tool)
