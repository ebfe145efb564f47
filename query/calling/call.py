"""Call a tool on the server that owns it: the main path of `call_tool`.

request ─▶ the tool in the caller's scope ─▶ is its server running? ─▶ arguments ─▶ connection ─▶ result
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import anyio
from mcp_types import CallToolResult, InputRequiredResult, RequestParamsMeta

from query.calling.arguments import check_arguments
from query.calling.connection import ToolCall
from query.calling.pool import CallResources
from query.calling.request import CallRequest
from query.calling.tool_lookup import resolve_tool_name
from query.calling.upstreams import Upstreams
from query.catalogue import Catalogue
from shared.catalog import Endpoint, IndexedTool, Scope
from shared.errors import ServerFailed, ServerNotRunning, ToolNotFound


@dataclass(frozen=True, slots=True)
class ResolvedTool:
    """The tool of a request, and the endpoint of its server."""

    tool: IndexedTool
    endpoint: Endpoint
    protocol_version: str | None


def resolve_tool(request: CallRequest, allowed: Scope, catalogue: Catalogue) -> ResolvedTool:
    """Return the tool to call; its server may have failed its last listing.

    Raises:
        ToolNotFound: the scope has no tool of this name, or several.
        ServerNotRunning: its server is stopped or quarantined.
        IndexUnavailable: the index did not answer.
    """
    catalogue = catalogue.pinned()
    tool = resolve_tool_name(request.name, allowed, catalogue, request.server_name)
    record = catalogue.index.server(tool.server_id)
    if record is None:
        raise ToolNotFound(request.name, "is no tool of a known server any more", ())
    if record.status != "running":
        raise ServerNotRunning(tool.server_id, f"is {record.status}, so its tools cannot be called now")
    return ResolvedTool(tool, record.endpoint, record.protocol_version)


async def call_tool(
    request: CallRequest,
    resolved: ResolvedTool,
    upstreams: Upstreams,
    resources: CallResources,
    meta: Mapping[str, Any] | None = None,
) -> CallToolResult:
    """Return the tool's own result, which may be an error; `meta` is forwarded without the keys of our connection.

    Raises:
        ArgumentsInvalid: the tool's input schema forbids the arguments; nothing was sent.
        ServerError, CallsExhausted: from `Upstreams.call`.
    """
    server_id, definition = resolved.tool.server_id, resolved.tool.definition
    await anyio.to_thread.run_sync(check_arguments, definition, request.parameters)
    call = ToolCall(server_id, definition.name, request.parameters, resolved.protocol_version, forwarded(meta))
    result = await upstreams.call(call, resolved.endpoint, resources)
    if isinstance(result, InputRequiredResult):
        raise ServerFailed(server_id, f"{definition.name} asks for input in mid-call, which Toolscale cannot pass on")
    return result


# Each connection has its own progress token; the SDK and the wire spell the key differently.
_OF_THIS_CONNECTION = frozenset({"progress_token", "progressToken"})
_PROTOCOL = frozenset({"modelcontextprotocol", "mcp"})


def forwarded(meta: Mapping[str, Any] | None) -> RequestParamsMeta:
    """Return the caller's trace context, baggage and vendor keys.

    The progress token and the protocol's own keys belong to the caller's connection, and are left out.
    """
    kept = {
        key: value
        for key, value in (meta or {}).items()
        if key not in _OF_THIS_CONNECTION and not _is_of_the_protocol(key)
    }
    return cast("RequestParamsMeta", kept)


def _is_of_the_protocol(key: str) -> bool:
    """Return whether the key's prefix is reserved: its second label is the protocol's name."""
    prefix, slash, _ = key.rpartition("/")
    return bool(slash) and not _PROTOCOL.isdisjoint(prefix.split(".")[1:2])
