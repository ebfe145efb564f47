"""A client of the SDK that uses Toolscale as an agent does."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.types import TextContent

MAX_PAGES = 20


@dataclass(frozen=True, slots=True)
class Agent:
    """A session of a caller."""

    client: Client

    async def list_tools(self) -> None:
        """Read all pages of `tools/list`."""
        cursor = (await self.client.list_tools()).next_cursor
        while cursor:
            cursor = (await self.client.list_tools(cursor=cursor)).next_cursor

    async def call(self, tool: str, /, **arguments: Any) -> str:
        """Return the last text of the answer; an empty text for a protocol error."""
        try:
            result = await self.client.call_tool(tool, arguments)
        except MCPError:
            return ""
        texts = [block.text for block in result.content if isinstance(block, TextContent)]
        return texts[-1] if texts else ""

    async def call_pages(self, tool: str, /, **arguments: Any) -> None:
        """Read the pages of an answer, at most MAX_PAGES."""
        cursor = _cursor(await self.call(tool, **arguments))
        for _ in range(MAX_PAGES - 1):
            if not cursor:
                return
            # call_tool reads the rest by its cursor alone; other tools take the same arguments
            repeated = {"tool_name": arguments["tool_name"]} if tool == "call_tool" else arguments
            cursor = _cursor(await self.call(tool, **{**repeated, "cursor": cursor}))


@asynccontextmanager
async def session(url: str, token: str, mode: str = "auto") -> AsyncGenerator[Agent]:
    """Connect to this URL with this bearer token."""
    headers = {"authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=120.0, trust_env=False) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, cache=None) as client,
    ):
        yield Agent(client)


def _cursor(text: str) -> str | None:
    try:
        answer: object = json.loads(text)
    except ValueError:
        return None
    return cast("dict[str, Any]", answer).get("nextCursor") if isinstance(answer, dict) else None
