"""The MCP tool `list_available_tools`; `query.tools.listing` implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp.types import Tool, ToolAnnotations

from query.caller import Caller
from query.tools.listing import TOOL, KeptNames, ListRequest, list_tools, read_page
from query.tools.schema import input_schema
from query.tools.tool import CatalogueTool

if TYPE_CHECKING:
    from query.catalogue import Catalogue

LIST_AVAILABLE_TOOLS = Tool(
    name=TOOL,
    description="List all tools by server, with what each would cost your context.",
    input_schema=input_schema(ListRequest),
    annotations=ToolAnnotations(title="List tools", read_only_hint=True, idempotent_hint=True, open_world_hint=False),
)


class ListAvailableTools(CatalogueTool[ListRequest]):
    """Lists the tools of a catalogue."""

    tool = LIST_AVAILABLE_TOOLS
    paging = "own"
    request_model = ListRequest

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._names = KeptNames()

    def respond(self, request: ListRequest, caller: Caller) -> dict[str, Any]:
        """Return a page of the listing."""
        read = self._names if request.detail == "name" else read_page
        return list_tools(request, caller.scope, self._catalogue, caller.name, read)
