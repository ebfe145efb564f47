"""The built-in tools of the query service, a module each; `find_tool` is in `query.find`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp.types import ListToolsResult
from mcp_types.version import LATEST_PROTOCOL_VERSION

from query.find import FindTool
from query.tool import definition_of
from query.tools.call_tool import CallTool
from query.tools.describe_tool import DescribeTool
from query.tools.get_active_toolset import GetActiveToolset
from query.tools.get_savings_report import GetSavingsReport
from query.tools.list_available_tools import ListAvailableTools
from query.tools.run_script import RunScript, missing_sandbox
from query.toolsets.offers import Offers
from query.usage.record import tools_sent
from shared.catalog import ToolDefinition
from shared.text.tokens import json_text

if TYPE_CHECKING:
    from query.calling.upstreams import Upstreams
    from query.catalogue import Catalogue
    from query.sign_in import SignInFlows
    from query.tool import ToolHandler

BUILTIN_TOOLS: tuple[type[ToolHandler], ...] = (
    FindTool, DescribeTool, CallTool, *(() if missing_sandbox() else (RunScript,)), ListAvailableTools,
    GetActiveToolset, GetSavingsReport,
)  # fmt: skip


def read_only_tools() -> frozenset[str]:
    """Return the names of the built-in tools that change nothing, by their annotations: they may be repeated."""
    hints = {handler.tool.name: handler.tool.annotations for handler in BUILTIN_TOOLS}
    return frozenset(name for name, annotations in hints.items() if annotations and annotations.read_only_hint)


def builtin_definitions() -> list[ToolDefinition]:
    """Return all built-in tools as `tools/list` sends them in the latest revision."""
    page = ListToolsResult(tools=[definition_of(handler) for handler in BUILTIN_TOOLS])
    return [ToolDefinition.from_wire(json_text(tool)) for tool in tools_sent(page, LATEST_PROTOCOL_VERSION)]


def builtin_tools(
    catalogue: Catalogue, upstreams: Upstreams | None = None, flows: SignInFlows | None = None
) -> list[ToolHandler]:
    """Return the built-in tools in the order of `tools/list`.

    `call_tool` needs upstreams, `run_script` also its sandbox, and `get_savings_report` usage; without them they are
    absent.
    """
    # without upstreams, no tool can be called and `tools/list` offers none directly
    offers = Offers(catalogue)
    handlers: list[ToolHandler] = [FindTool(catalogue, offers if upstreams else None), DescribeTool(catalogue)]
    if upstreams:
        call_tool = CallTool(catalogue, upstreams, flows)
        handlers.append(call_tool)
        if not missing_sandbox():
            handlers.append(RunScript(catalogue, call_tool, upstreams.per_caller))
    handlers += [ListAvailableTools(catalogue), GetActiveToolset(catalogue, offers)]
    if catalogue.usage:
        handlers.append(GetSavingsReport(catalogue, catalogue.usage))
    return handlers
