"""A query service over a catalogue of given targets, and what a test asks it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from typing import Any

from mcp import Client
from mcp.types import CallToolResult, TextContent

from query.calling.connection import CallLimits
from query.calling.upstreams import Upstreams
from query.catalogue import Catalogue
from query.savings.ledger import Ledger
from query.server.mcp import build_server
from query.tools.registry import builtin_tools
from shared.catalog import Endpoint, IndexedTool, ServerRecord, ToolDefinition
from shared.upstream.dial import Dialler, Target
from tests.support.fakes import FakeEmbedder, FakeIndex, ingested, make_tool

PATIENT = CallLimits(timeout_s=30)


def catalogue_of(tools: Iterable[IndexedTool], protocol_version: str | None = None) -> Catalogue:
    """Return a catalogue of these tools, each of their servers running."""
    index, embedder = FakeIndex(), FakeEmbedder()
    for tool in tools:
        index.upsert([ingested(tool, embedder)])
        record = ServerRecord(server_id=tool.server_id, endpoint=Endpoint(), protocol_version=protocol_version)
        index.put_server(record)
    return Catalogue(index, embedder, Ledger(index))


def tool_of(server_id: str, name: str, **properties: Any) -> IndexedTool:
    """Return a tool; keyword arguments become required parameters with this schema."""
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    wire = json.dumps({"name": name, "inputSchema": schema})
    return replace(make_tool(server_id, name), definition=ToolDefinition.from_wire(wire))


def upstreams_to(targets: Mapping[str, Target], limits: CallLimits = PATIENT) -> Upstreams:
    """Return upstreams for these targets; a test may change the mapping later."""
    return Upstreams(Dialler(targets, frozenset(), None, {}).target, limits)


@asynccontextmanager
async def calling(
    targets: Mapping[str, Target],
    *tools: IndexedTool,
    mode: str = "auto",
    limits: CallLimits = PATIENT,
    protocol_version: str | None = None,
) -> AsyncGenerator[Client]:
    """Yield a client of a service that can call these tools on these targets."""
    with closing(upstreams_to(targets, limits)) as upstreams:
        server = build_server(builtin_tools(catalogue_of(tools, protocol_version), upstreams))
        async with Client(server, mode=mode) as client:
            yield client


def text_of(result: CallToolResult) -> str:
    """Return the text of a result that has no other content."""
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text
