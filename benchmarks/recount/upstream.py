"""The tools of each server, as the server sends them to a client of the SDK: raw, with their keys in order."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCResponse

from toolscale.demo.servers import LaunchableServer

Tools = list[dict[str, Any]]


def raw_tools(servers: Sequence[LaunchableServer]) -> dict[str, Tools]:
    """Return the tools of these servers by id."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        listed = pool.map(_tools_of, servers)
        return {server.server_id: tools for server, tools in zip(servers, listed, strict=True)}


def _tools_of(server: LaunchableServer) -> Tools:
    return anyio.run(_listed, server)


async def _listed(server: LaunchableServer) -> Tools:
    parameters = StdioServerParameters(command=server.command, args=list(server.args), env=dict(server.env))
    received: list[dict[str, Any]] = []
    async with Client(_recorded(parameters, received), cache=None) as client:
        cursor = (await client.list_tools()).next_cursor
        while cursor:
            cursor = (await client.list_tools(cursor=cursor)).next_cursor
    return [tool for result in received for tool in result.get("tools", ())]


@asynccontextmanager
async def _recorded(parameters: StdioServerParameters, received: list[dict[str, Any]]) -> AsyncGenerator[Any]:
    """Connect to the server and keep a copy of each result, before the SDK reads it."""
    send, receive = anyio.create_memory_object_stream[SessionMessage | Exception](0)

    async def copy() -> None:
        async with send:
            async for message in read:
                if isinstance(message, SessionMessage) and isinstance(message.message, JSONRPCResponse):
                    received.append(json.loads(json.dumps(message.message.result)))
                await send.send(message)

    async with (
        stdio_client(parameters, subprocess.DEVNULL) as (read, write),  # type: ignore[arg-type]  # a file of Popen
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(copy)
        yield receive, write
        tasks.cancel_scope.cancel()
