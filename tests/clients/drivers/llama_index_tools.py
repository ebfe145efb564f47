"""LlamaIndex's tools of an MCP server; its client opens a session for each call."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from answering import Result, Session, answer
from llama_index.tools.mcp import BasicMCPClient, McpToolSpec


@asynccontextmanager
async def connect(target: dict[str, Any]) -> AsyncGenerator[Session]:
    """Yield the function tools of a server."""
    address = target.get("url") or target["command"]
    client = BasicMCPClient(address, args=target.get("args"), env=target.get("env"))
    tools = {tool.metadata.name: tool for tool in await McpToolSpec(client).to_tool_list_async()}

    async def list_tools() -> list[str]:
        return list(tools)

    async def call_tool(name: str, arguments: dict[str, Any]) -> Result:
        result = (await tools[name].acall(**arguments)).raw_output
        return Result("\n".join(block.text for block in result.content), result.is_error)

    yield Session(list_tools, call_tool)


if __name__ == "__main__":
    answer(connect)
