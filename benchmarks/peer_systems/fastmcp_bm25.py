"""FastMCP's BM25 search transform, asked over MCP in memory."""

from __future__ import annotations

import importlib
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from benchmarks.peer_systems.answering import Search, TimedEmbedder, Tool, ToolKey, answer, keys, one_by_one

MAX_RESULTS = 10


@asynccontextmanager
async def fastmcp_bm25(tools: Sequence[Tool], _: TimedEmbedder) -> AsyncGenerator[Search]:
    """Yield a server with all tools, named as mounted servers are: the server's name before the tool's."""
    fastmcp, transforms = (
        importlib.import_module("fastmcp"),
        importlib.import_module("fastmcp.server.transforms.search"),
    )
    new_tool = importlib.import_module("fastmcp.tools").Tool
    named = keys(tools, _mounted_name)
    server = fastmcp.FastMCP("all", transforms=[transforms.BM25SearchTransform(max_results=MAX_RESULTS)])
    for name, tool in named.items():
        server.add_tool(new_tool(name=name, description=tool.description, parameters=tool.input_schema))

    async with fastmcp.Client(server) as client:

        async def find(text: str, k: int) -> list[ToolKey]:
            result = await client.call_tool("search_tools", {"query": text})
            return [named[tool["name"]].key for tool in result.structured_content["result"][:k]]

        yield one_by_one(find)


def _mounted_name(tool: Tool) -> str:
    # a copy needs another server name, and this index ignores terms of one letter
    copy = f"_{tool.copy}" if tool.copy else ""
    return re.sub(r"\W+", "_", f"{tool.server}{copy}_{tool.name}")


if __name__ == "__main__":
    answer(fastmcp_bm25)
