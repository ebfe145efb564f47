"""The built-in tools of the query service, one module each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from query.tools.call_tool import CallTool
from query.tools.describe_tool import DescribeTool
from query.tools.find_tool import FindTool
from query.tools.get_active_toolset import GetActiveToolset
from query.tools.get_savings_report import GetSavingsReport
from query.tools.list_available_tools import ListAvailableTools
from query.toolsets.offered import CachedOfferedCost, nothing_offered

if TYPE_CHECKING:
    from query.calling.upstreams import Upstreams
    from query.catalogue import Catalogue
    from query.tools.tool import ToolHandler


def builtin_tools(catalogue: Catalogue, upstreams: Upstreams | None = None) -> list[ToolHandler]:
    """Return the built-in tools in the order of `tools/list`.

    `call_tool` needs upstreams, and `get_savings_report` needs a recorder; without them they are absent.
    """
    # without upstreams, no tool can be called and `tools/list` offers none directly
    offered = CachedOfferedCost(catalogue) if upstreams else nothing_offered
    handlers: list[ToolHandler] = [FindTool(catalogue, offered), DescribeTool(catalogue)]
    if upstreams:
        handlers.append(CallTool(catalogue, upstreams))
    handlers += [ListAvailableTools(catalogue), GetActiveToolset(catalogue)]
    if catalogue.recorder:
        handlers.append(GetSavingsReport(catalogue, catalogue.recorder))
    return handlers
