"""`get_active_toolset`, as MCP clients see it; what it does is in `query.toolsets.report`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog
from mcp.types import Tool, ToolAnnotations

from query.caller import Caller
from query.tools.schema import input_schema
from query.tools.tool import ToolHandler, handler_for
from query.toolsets.report import ToolsetRequest, toolset_report

if TYPE_CHECKING:
    from query.catalogue import Catalogue

GET_ACTIVE_TOOLSET = Tool(
    name="get_active_toolset",
    description="Show your toolset: its tools, what they cost your context, and your budget.",
    input_schema=input_schema(ToolsetRequest),
    annotations=ToolAnnotations(title="Show toolset", read_only_hint=True, idempotent_hint=True, open_world_hint=False),
)

_log = structlog.get_logger()


def get_active_toolset_handler(catalogue: Catalogue) -> ToolHandler:
    """Return the tool that shows a caller its toolset."""

    def respond(request: ToolsetRequest, caller: Caller) -> dict[str, Any]:
        response = toolset_report(request, caller, catalogue)
        _log.info("toolset_shown", toolset=response["toolset"], tools=len(response["tools"]))
        return response

    return ToolHandler(GET_ACTIVE_TOOLSET, "catalog:read", handler_for(ToolsetRequest, respond))
