"""Toolscale: ingested by its write path into Qdrant Edge, asked over MCP in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import groupby

from benchmarks.catalogue import put_replicas
from benchmarks.corpora import PROTOCOL_VERSION, CorpusServer, asking, ingested, read_tool
from benchmarks.peer_systems.answering import Search, TimedEmbedder, Tool, ToolKey, answer
from shared.catalog import Listing, ToolDefinition
from shared.service.logging import configure_logging


@asynccontextmanager
async def toolscale(tools: Sequence[Tool], embedder: TimedEmbedder) -> AsyncGenerator[Search]:
    """Yield Toolscale's query service over an index of all tools.

    A copy's server is a replica: it declares the name of its original.
    """
    servers = _servers([tool for tool in tools if not tool.copy])
    replicas = _servers([tool for tool in tools if tool.copy], first=len(servers))
    with ingested(servers, embedder) as system:
        put_replicas(system.index, {replica.server_id: replica.listing for replica in replicas}, embedder)
        system.names.update({replica.server_id: replica.name for replica in replicas})
        async with asking(system) as find:

            async def search(steps: Sequence[str], k: int) -> list[ToolKey]:
                return await find(steps[0] if len(steps) == 1 else list(steps), k)

            yield search


def _servers(tools: Sequence[Tool], first: int = 0) -> list[CorpusServer]:
    def server_of(tool: Tool) -> tuple[str, int]:
        return tool.server, tool.copy

    by_server = groupby(sorted(tools, key=server_of), key=server_of)
    return [
        CorpusServer(f"server-{number}", name, Listing(name, PROTOCOL_VERSION, tuple(map(_definition, own))))
        for number, ((name, _), own) in enumerate(by_server, start=first)
    ]


def _definition(tool: Tool) -> ToolDefinition:
    return read_tool({"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema})


if __name__ == "__main__":
    configure_logging("WARNING")
    answer(toolscale)
