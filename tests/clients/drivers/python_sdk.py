"""The Python SDK of version 1: a `ClientSession` over streamable HTTP or stdio."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from answering import Result, Session, answer
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client


@asynccontextmanager
async def connect(target: dict[str, Any]) -> AsyncGenerator[Session]:
    """Yield an initialized session."""
    opened = streamable_http_client(target["url"]) if "url" in target else stdio_client(StdioServerParameters(**target))
    async with opened as (read, write, *_), ClientSession(read, write) as session:
        await session.initialize()

        async def list_tools() -> list[str]:
            return [tool.name for tool in (await session.list_tools()).tools]

        async def call_tool(name: str, arguments: dict[str, Any]) -> Result:
            result = await session.call_tool(name, arguments)
            return Result("\n".join(block.text for block in result.content), result.isError)

        yield Session(list_tools, call_tool)


if __name__ == "__main__":
    answer(connect)
