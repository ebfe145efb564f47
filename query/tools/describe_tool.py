"""`describe_tool`, as MCP clients see it; what it does is in `query.describe`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog
from mcp.types import Tool, ToolAnnotations

from query.caller import Caller
from query.describe import DescribeAnswer, DescribeRequest, describe_tools
from query.history.notes import given_by_description
from query.schema import input_schema, output_schema
from query.tools.offer import Offer, answering

if TYPE_CHECKING:
    from query.catalogue import Catalogue

DESCRIBE_TOOL = Tool(
    name="describe_tool",
    description="Return the full definitions of tools whose names you know.",
    input_schema=input_schema(DescribeRequest),
    output_schema=output_schema(DescribeAnswer),
    annotations=ToolAnnotations(
        title="Describe tools", read_only_hint=True, idempotent_hint=True, open_world_hint=False
    ),
)

_log = structlog.get_logger()


def describe_tool_offer(catalogue: Catalogue) -> Offer:
    """Return the tool that describes tools of this catalogue."""

    def respond(request: DescribeRequest, caller: Caller) -> dict[str, Any]:
        answer = describe_tools(request, caller.scope, catalogue)
        _log.info("tools_described", described=len(answer.tools), not_found=len(answer.not_found or ()))
        if catalogue.savings:
            catalogue.savings.note(given_by_description(answer.tools, caller))
        return answer.as_object()

    return Offer(DESCRIBE_TOOL, "catalog:read", answering(DescribeRequest, respond))
