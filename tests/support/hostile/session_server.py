"""A server that keeps state for each session, run as a program: `python session_server.py stdio|http|legacy|sse [FD]`.

`legacy` assigns sessions over HTTP, and `http` uses none with clients of the newest revision.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from starlette.requests import Request

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.support.hostile.good_server import run

Context = ServerRequestContext[Any, Any]
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"number": {"type": "integer"}}}

words: defaultdict[str, list[str]] = defaultdict(list)
enabled: set[str] = set()


def session_of(context: Context) -> str:
    request: object = context.request
    if not isinstance(request, Request):
        return f"pid {os.getpid()}"
    return request.headers.get("mcp-session-id") or request.query_params.get("session_id", "none")


async def list_tools(context: Context, _: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    more = ["hidden"] if session_of(context) in enabled else []
    names = ("remember", "recall", "enable", "where", "asks", *more)
    return types.ListToolsResult(tools=[types.Tool(name=name, input_schema=SCHEMA) for name in names])


async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    session = session_of(context)
    if params.name == "remember":
        words[session].append(str((params.arguments or {})["word"]))
    elif params.name == "enable":
        enabled.add(session)
        await context.session.send_tool_list_changed()
    elif params.name == "where":
        session = str(Path.cwd())
    elif params.name == "asks":
        with suppress(MCPError):  # the client may have none
            await context.session.list_roots()  # pyright: ignore[reportDeprecated]  # older clients have no other
    elif params.name == "hidden" and session not in enabled:
        return types.CallToolResult(content=[types.TextContent(text="there is no such tool")], is_error=True)
    return types.CallToolResult(content=[types.TextContent(text=f"{session}: {' '.join(words[session])}")])


if __name__ == "__main__":
    run(Server("sessions", version="1", on_list_tools=list_tools, on_call_tool=call_tool))
