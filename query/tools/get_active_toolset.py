"""The MCP tool `get_active_toolset`; `query.toolsets.report` implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog
from mcp.types import Tool, ToolAnnotations

from query.caller import Caller
from query.tools.schema import input_schema
from query.tools.tool import CatalogueTool
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


class GetActiveToolset(CatalogueTool[ToolsetRequest]):
    """Shows a caller its toolset."""

    tool = GET_ACTIVE_TOOLSET
    request_model = ToolsetRequest

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def respond(self, request: ToolsetRequest, caller: Caller) -> dict[str, Any]:
        """Return the toolset report; log its size."""
        response = toolset_report(request, caller, self._catalogue)
        _log.info("toolset_shown", toolset=response["toolset"], tools=len(response["tools"]))
        return response
