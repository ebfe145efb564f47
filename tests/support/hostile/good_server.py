"""A good server built with the SDK, run as a program: `python good_server.py stdio|http|legacy|sse [FD]`.

It has 250 tools on three pages. `legacy` is the same without `server/discover`.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import anyio
import mcp_types as types
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server

TOOLS = [
    types.Tool(
        name=f"tool_{number:03}",
        description=f"Looks up record {number}.",
        input_schema={"type": "object", "properties": {"record_id": {"type": "string", "default": None}}},
        annotations=types.ToolAnnotations(read_only_hint=True),
    )
    for number in range(250)
]
PAGE = 100

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


async def list_tools(
    _context: ServerRequestContext[Any, Any], params: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    start = int(params.cursor) if params and params.cursor else 0
    following = str(start + PAGE) if start + PAGE < len(TOOLS) else None
    return types.ListToolsResult(tools=TOOLS[start : start + PAGE], next_cursor=following)


server: Server[Any] = Server("good", version="1", on_list_tools=list_tools)


async def over_stdio(server: Server[Any]) -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def without_discover(app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> Any:
    """Answer the version probe as a server that does not support it."""

    async def legacy(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (b"mcp-method", b"server/discover") in scope["headers"]:
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body"})
        else:
            await app(scope, receive, send)

    return legacy


def sse_app(server: Server[Any]) -> Any:
    transport = SseServerTransport("/messages/")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"].startswith("/messages/"):
            await transport.handle_post_message(scope, receive, send)
            return
        async with transport.connect_sse(scope, receive, send) as (read, write):
            await server.run(read, write, server.create_initialization_options())

    return app


def over_http(server: Server[Any], kind: str, descriptor: int) -> None:
    import uvicorn

    apps: dict[str, Callable[[], Any]] = {
        "http": server.streamable_http_app,
        "legacy": lambda: without_discover(server.streamable_http_app()),
        "sse": lambda: sse_app(server),
    }
    config = uvicorn.Config(apps[kind](), log_level="warning", lifespan="off" if kind == "sse" else "on")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


def run(server: Server[Any]) -> None:
    """Serve according to the command line."""
    if sys.argv[1] == "stdio":
        anyio.run(over_stdio, server)
    else:
        over_http(server, sys.argv[1], int(sys.argv[2]))


if __name__ == "__main__":
    run(server)
