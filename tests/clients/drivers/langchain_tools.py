"""LangChain's MCP adapters: tools of one session, called as an agent's tool node calls them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from answering import Result, Session, answer
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools


@asynccontextmanager
async def connect(target: dict[str, Any]) -> AsyncGenerator[Session]:
    """Yield the tools of a session."""
    transport = "streamable_http" if "url" in target else "stdio"
    client = MultiServerMCPClient({"toolscale": {"transport": transport, **target}})
    async with client.session("toolscale") as session:
        tools = {tool.name: tool for tool in await load_mcp_tools(session)}

        async def list_tools() -> list[str]:
            return list(tools)

        async def call_tool(name: str, arguments: dict[str, Any]) -> Result:
            call = {"type": "tool_call", "id": "1", "name": name, "args": arguments}
            message = await tools[name].ainvoke(call)
            return Result(message.text, message.status == "error")

        yield Session(list_tools, call_tool)


if __name__ == "__main__":
    answer(connect)
