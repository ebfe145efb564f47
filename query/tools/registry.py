"""The tools that the query service itself offers, a module each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from query.tools.call_tool import call_tool_handler
from query.tools.describe_tool import describe_tool_handler
from query.tools.find_tool import find_tool_handler
from query.tools.get_active_toolset import get_active_toolset_handler
from query.tools.get_savings_report import get_savings_report_handler
from query.tools.list_available_tools import list_available_tools_handler
from query.tools.tool import BuiltinDefinitions

if TYPE_CHECKING:
    from query.calling.upstreams import Upstreams
    from query.catalogue import Catalogue
    from query.tools.tool import ToolHandler


def builtin_tools(catalogue: Catalogue, upstreams: Upstreams | None = None) -> list[ToolHandler]:
    """Return our tools in the order in which they are listed; without a way to the servers, none that calls.

    Where no savings are recorded, there is no report of them.
    """
    handlers: list[ToolHandler] = []
    handlers += [
        find_tool_handler(catalogue, BuiltinDefinitions(handlers, catalogue.encoding)),
        describe_tool_handler(catalogue),
    ]
    if upstreams:
        handlers.append(call_tool_handler(catalogue, upstreams))
    handlers += [list_available_tools_handler(catalogue), get_active_toolset_handler(catalogue)]
    if catalogue.recorder:
        handlers.append(get_savings_report_handler(catalogue, catalogue.recorder))
    return handlers
