"""The MCP tool `describe_tool`: definitions of tools by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import structlog
from mcp.types import Tool, ToolAnnotations
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from query.answers.answer import FoundTool, to_found_tool
from query.answers.budget import ToolRequest
from query.caller import Caller
from query.calling.tool_lookup import ResolvedName, resolve_tool_names
from query.catalogue import Catalogue
from query.records import StatedEncoding
from query.replicas import Replicated, Serving, servings
from query.search.request import ToolName
from query.tool import ALWAYS_LOADED, CatalogueTool, input_schema, output_schema
from query.turns import give_way
from shared.catalog import DEFAULT_ENCODING, Encoding, Scope
from shared.errors import ToolNotFound
from shared.text.tokens import is_estimate

_log = structlog.get_logger()


class DescribeRequest(ToolRequest):
    """The names of the tools to describe, and the detail level."""

    names: Annotated[
        ToolName | Annotated[list[ToolName], Field(min_length=1, max_length=50)],
        WithJsonSchema({"type": "array", "items": {"type": "string"}}),
    ]
    """As in an answer: `server:tool`."""
    detail: Literal["summary", "detailed", "full"] = "detailed"
    """summary: a signature; full: every field."""
    encoding: SkipJsonSchema[Encoding | None] = None
    """What token_count is in."""

    @property
    def distinct(self) -> list[str]:
        """Return every name once, in the order of the request."""
        return [self.names] if isinstance(self.names, str) else list(dict.fromkeys(self.names))


class NotDescribed(BaseModel):
    """A name without a tool, and why."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    name: str
    reason: str
    candidates: list[str] | None = None
    """What may have been meant, as server:tool."""
    hints: list[str] | None = None
    """Servers that the name names, and that cannot be listed now."""


class DescribeResponse(BaseModel):
    """The requested tools in their order, and the names without a tool."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    tools: list[FoundTool]
    encoding: StatedEncoding = DEFAULT_ENCODING
    estimated: bool | None = None
    """True: token_count is an estimate."""
    not_found: list[NotDescribed] | None = None

    def as_object(self) -> dict[str, Any]:
        """Return the JSON object to send, without fields that are None."""
        return self.model_dump(mode="json", exclude_none=True, by_alias=True)


def describe_tools(request: DescribeRequest, allowed: Scope, catalogue: Catalogue) -> DescribeResponse:
    """Return the definitions of the allowed tools with these names, and a reason for each name without a tool.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    catalogue = catalogue.pinned()
    ledger, encoding = catalogue.ledger, request.encoding or catalogue.encoding
    ledger.refresh()
    resolutions = resolve_tool_names(request.distinct, allowed, catalogue)
    resolved = [found for found in resolutions.values() if isinstance(found, ResolvedName)]
    replicated = Replicated.of(allowed, ledger.replica_sets(allowed))
    without_server = [found.tool for found in resolved if not found.is_server_named]
    serving = servings(without_server, replicated, replicated, catalogue.index)
    tools: list[FoundTool] = []
    for found in resolved:
        give_way()  # a definition may be large
        tool = found.tool
        own = Serving(tool.qualified_name, (tool.server_id,), ledger.stale_since(tool.server_id))
        served = own if found.is_server_named else serving[tool.qualified_name]
        described = to_found_tool(tool, served, None, encoding, request.detail)
        tools.append(described.model_copy(update={"token_count": tool.token_counts.get(encoding)}))
    problems = [
        NotDescribed(
            name=name,
            reason=error.reason,
            candidates=(list(error.candidates) or None) if isinstance(error, ToolNotFound) else None,
            hints=(list(error.hints) or None) if isinstance(error, ToolNotFound) else None,
        )
        for name, error in resolutions.items()
        if not isinstance(error, ResolvedName)
    ]
    return DescribeResponse(
        tools=tools, encoding=encoding, estimated=is_estimate(encoding) or None, not_found=problems or None
    )


DESCRIBE_TOOL = Tool(
    name="describe_tool",
    description="Return the definitions of tools whose names you know.",
    input_schema=input_schema(DescribeRequest),
    output_schema=output_schema(DescribeResponse),
    annotations=ToolAnnotations(
        title="Describe tools", read_only_hint=True, idempotent_hint=True, open_world_hint=False
    ),
    _meta=ALWAYS_LOADED,
)


class DescribeTool(CatalogueTool[DescribeRequest]):
    """Describes tools of a catalogue."""

    tool = DESCRIBE_TOOL
    request_model = DescribeRequest

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def respond(self, request: DescribeRequest, caller: Caller) -> dict[str, Any]:
        """Return the definitions; log the request."""
        response = describe_tools(request, self._catalogue.scope(caller), self._catalogue)
        _log.info("tools_described", described=len(response.tools), not_found=len(response.not_found or ()))
        return response.as_object()
