"""`list_available_tools`, as MCP clients see it; what it does is in `query.tools.listing`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog
from mcp.types import Tool, ToolAnnotations

from query.caller import Caller
from query.tools.listing import TOOL, ListRequest, list_tools
from query.tools.schema import input_schema
from query.tools.tool import ToolHandler, handler_for

if TYPE_CHECKING:
    from query.catalogue import Catalogue

LIST_AVAILABLE_TOOLS = Tool(
    name=TOOL,
    description="List all tools by server, with what each would cost your context.",
    input_schema=input_schema(ListRequest),
    annotations=ToolAnnotations(title="List tools", read_only_hint=True, idempotent_hint=True, open_world_hint=False),
)

_log = structlog.get_logger()


def list_available_tools_handler(catalogue: Catalogue) -> ToolHandler:
    """Return the tool that lists the tools of this catalogue."""

    def respond(request: ListRequest, caller: Caller) -> dict[str, Any]:
        response = list_tools(request, caller.scope, catalogue, caller.name)
        _log.info("tools_listed", listed=sum(len(server["tools"]) for server in response["toolsByServer"]))
        return response

    return ToolHandler(LIST_AVAILABLE_TOOLS, "catalog:read", handler_for(ListRequest, respond), paging="own")
