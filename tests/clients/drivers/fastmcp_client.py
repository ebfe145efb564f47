"""FastMCP's client."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from answering import Result, Session, answer
from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from fastmcp.exceptions import ToolError


@asynccontextmanager
async def connect(target: dict[str, Any]) -> AsyncGenerator[Session]:
    """Yield a connected client."""
    async with Client(target["url"] if "url" in target else StdioTransport(**target)) as client:

        async def list_tools() -> list[str]:
            return [tool.name for tool in await client.list_tools()]

        async def call_tool(name: str, arguments: dict[str, Any]) -> Result:
            try:
                result = await client.call_tool(name, arguments)
            except ToolError as error:
                return Result(str(error), is_error=True)
            return Result("\n".join(block.text for block in result.content), is_error=False)

        yield Session(list_tools, call_tool)


if __name__ == "__main__":
    answer(connect)
