"""A server that notifies of changes of its tools, run as a program: `python notifying_server.py KIND FILE [FD]`.

Its tools are the lines of FILE, which a test edits. FILE.sessions exists when a session would be notified.
KIND is `http` (both eras), `legacy` (no `server/discover`), `stateless` (the same, without sessions), `mute`
(2026-07-28 without subscriptions), `sse`, `stdio`, or `storm` and `legacy-storm`, which notify without end.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.subscriptions import ToolsListChanged

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.support.hostile.good_server import sse_app, without_discover

KIND, FILE = sys.argv[1], Path(sys.argv[2])
Context = ServerRequestContext[Any, Any]

bus = InMemorySubscriptionBus()
sessions: list[Any] = []


async def list_tools(_context: Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    return types.ListToolsResult(tools=[types.Tool(name=name, input_schema=schema) for name in names()])


async def remember(context: Context, _params: types.NotificationParams | None) -> None:
    sessions.append(context.session)
    FILE.with_suffix(".sessions").touch()


def names() -> list[str]:
    return FILE.read_text(encoding="utf-8").split()


async def tell() -> None:
    await bus.publish(ToolsListChanged())
    for session in list(sessions):
        try:
            with anyio.fail_after(1):
                await session.send_tool_list_changed()
        except Exception:  # noqa: BLE001  # whatever is wrong with a session, it is gone
            sessions.remove(session)


async def watch() -> None:
    before = names()
    while True:
        await anyio.sleep(0 if "storm" in KIND else 0.02)
        if "storm" in KIND or names() != before:
            before = names()
            await tell()


def build() -> Server[Any]:
    listen = None if KIND == "mute" else ListenHandler(bus)
    server: Server[Any] = Server("telling", version="1", on_list_tools=list_tools, on_subscriptions_listen=listen)
    server.add_notification_handler("notifications/initialized", types.NotificationParams, remember)
    return server


async def over_stdio(server: Server[Any]) -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options(NotificationOptions(tools_changed=True)))


async def over_http(server: Server[Any], descriptor: int) -> None:
    import uvicorn

    apps: dict[str, Callable[[], Any]] = {
        "http": server.streamable_http_app,
        "mute": server.streamable_http_app,
        "storm": server.streamable_http_app,
        "legacy": lambda: without_discover(server.streamable_http_app()),
        "legacy-storm": lambda: without_discover(server.streamable_http_app()),
        "stateless": lambda: without_discover(server.streamable_http_app(stateless_http=True)),
        "sse": lambda: sse_app(server),
    }
    config = uvicorn.Config(apps[KIND](), log_level="warning", lifespan="off" if KIND == "sse" else "on")
    await uvicorn.Server(config).serve(sockets=[socket.socket(fileno=descriptor)])


async def main() -> None:
    server = build()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        if KIND == "stdio":
            await over_stdio(server)
        else:
            await over_http(server, int(sys.argv[3]))
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main)
