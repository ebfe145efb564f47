"""A query service over a catalogue of given targets, and what a test asks it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from mcp import Client
from mcp.types import CallToolResult, TextContent

from query.calling.limits import CallLimits
from query.calling.upstreams import Upstreams
from query.catalogue import Catalogue
from query.mcp import build_server
from query.records import Ledger
from query.tools.registry import builtin_tools
from shared.catalog import FEATURES_VERSION, Endpoint, IndexedTool, ServerRecord, ToolDefinition
from shared.upstream.dial import Dialler
from shared.upstream.options import ServerOptions
from shared.upstream.server_rules import ReadOptions
from shared.upstream.target import Target
from tests.support.fakes import FakeEmbedder, FakeIndex, ingested, make_tool

PATIENT = CallLimits(timeout_s=30)


def catalogue_of(tools: Iterable[IndexedTool], protocol_version: str | None = None) -> Catalogue:
    """Return a catalogue of these tools, each of their servers running."""
    index, embedder = FakeIndex(), FakeEmbedder()
    for revision, tool in enumerate(tools, start=1):
        index.upsert([ingested(tool, embedder)])
        record = ServerRecord(
            server_id=tool.server_id,
            endpoint=Endpoint(),
            protocol_version=protocol_version,
            features_version=FEATURES_VERSION,
            last_listed_at=1.0,
            revision=revision,
        )
        index.put_server(record)
    return Catalogue(index, embedder, Ledger(index))


def replicated(
    servers: Iterable[str], *tools: IndexedTool, protocol_version: str | None = None, first: str | None = None
) -> Catalogue:
    """Return a catalogue in which each of these servers offers the same tools.

    Calls try the server `first` before the others, whose lists are stale then.
    """
    index, embedder = FakeIndex(), FakeEmbedder()
    for revision, server_id in enumerate(servers, start=1):
        index.upsert([ingested(replace(tool, server_id=server_id), embedder) for tool in tools])
        stale = None if first in (None, server_id) else 1.0
        record = replica_record(server_id, protocol_version=protocol_version, stale_since=stale, revision=revision)
        index.put_server(record)
    return Catalogue(index, embedder, Ledger(index))


def replica_record(server_id: str, **fields: object) -> ServerRecord:
    """Return the record of a listed server; servers without another `catalog_digest` are replicas."""
    record = ServerRecord(
        server_id=server_id,
        endpoint=Endpoint(),
        declared_name="replicated",
        catalog_digest="one",
        features_version=FEATURES_VERSION,
        last_listed_at=1.0,
    )
    return record.model_copy(update=fields)


def tool_of(server_id: str, name: str, hint: str | None = None, **properties: Any) -> IndexedTool:
    """Return a tool with this hint; keyword arguments become required parameters with this schema."""
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    hints = {"annotations": {hint: True}} if hint else {}
    wire = json.dumps({"name": name, "inputSchema": schema, **hints})
    return replace(make_tool(server_id, name), definition=ToolDefinition.from_wire(wire))


def upstreams_to(targets: Mapping[str, Target], limits: CallLimits = PATIENT) -> Upstreams:
    """Return upstreams for these targets; a test may change the mapping later."""
    return Upstreams(Dialler(targets, frozenset(), None, {}).target, limits)


def options_of(options: Mapping[str, ServerOptions]) -> ReadOptions:
    """Return the reader of these servers' options; any other server has the default ones."""
    return lambda server_id, _: options.get(server_id, ServerOptions())


@asynccontextmanager
async def calling(
    targets: Mapping[str, Target],
    *tools: IndexedTool,
    mode: str = "auto",
    limits: CallLimits = PATIENT,
    protocol_version: str | None = None,
    catalogue: Catalogue | None = None,
) -> AsyncGenerator[Client]:
    """Yield a client of a service that can call these tools, or those of a catalogue, on these targets."""
    upstreams = upstreams_to(targets, limits)
    called = catalogue or catalogue_of(tools, protocol_version)
    server = build_server(builtin_tools(called, upstreams), upstreams=upstreams)
    async with Client(server, mode=mode) as client:
        yield client


async def started(client: Client, name: str, **parameters: object) -> None:
    """Call a tool until its server has started, which may take longer than one call; the start continues."""
    for _ in range(10):
        if not (await client.call_tool("call_tool", {"tool_name": name, "parameters": parameters})).is_error:
            return
    raise AssertionError(f"{name} was not called in ten attempts")


def text_of(result: CallToolResult) -> str:
    """Return the text of a result that has no other content."""
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text
