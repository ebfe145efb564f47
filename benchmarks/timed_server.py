"""An MCP server whose tool reports its duration, so that the overhead of a call can be computed.

As a program: `python -m benchmarks.timed_server stdio`, or `... http FD` on an open socket.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import anyio
from mcp import StdioServerParameters
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)

from benchmarks.harness import ROOT
from tests.support.hostile.good_server import run

PROGRAM = ["-m", "benchmarks.timed_server"]
WORK = Tool(
    name="work",
    description="Works for a while, and reports its duration.",
    input_schema={
        "type": "object",
        "properties": {"for_ms": {"type": "number", "minimum": 0}},
        "required": ["for_ms"],
        "additionalProperties": False,
    },
)


@contextmanager
def over_http() -> Generator[str]:
    """Run the server in a process and yield its URL; connections wait until it has started."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        # as a server has it that opens its socket itself: else every answer waits for a delayed acknowledgement
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        command = [sys.executable, *PROGRAM, "http", str(listener.fileno())]
        with subprocess.Popen(command, pass_fds=[listener.fileno()]) as process:
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
            finally:
                process.kill()


def over_stdio() -> StdioServerParameters:
    """Return the command of the server over stdio."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return StdioServerParameters(command=sys.executable, args=[*PROGRAM, "stdio"], env=environment)


async def _list(_: ServerRequestContext[Any], _params: PaginatedRequestParams | None) -> ListToolsResult:
    return ListToolsResult(tools=[WORK])


async def _call(_: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
    started = time.perf_counter()
    await anyio.sleep((params.arguments or {})["for_ms"] / 1000)
    took_ms = (time.perf_counter() - started) * 1000
    return CallToolResult(content=[TextContent(type="text", text="done")], structured_content={"took_ms": took_ms})


if __name__ == "__main__":
    run(Server("timed", version="1", on_list_tools=_list, on_call_tool=_call))
