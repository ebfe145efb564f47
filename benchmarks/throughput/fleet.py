"""A process with a fleet of real MCP servers over HTTP.

As a program, `python -m benchmarks.throughput.fleet FD SERVERS TOOLS SEED` serves it on an open socket.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.types import ListToolsResult, PaginatedRequestParams, Tool
from starlette.applications import Starlette

from benchmarks.throughput.corpus import definitions, server_id

# The page size of the SDK's examples and many public servers.
PAGE = 100


@dataclass(frozen=True, slots=True)
class FleetServer:
    """A server of the fleet and where it listens."""

    server_id: str
    url: str


@contextmanager
def fleet(servers: int, tools: int, seed: int) -> Generator[list[FleetServer]]:
    """Run this many servers with this many tools each; connections wait until the process has started."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        # as a server has it that opens its socket itself: else every answer waits for a delayed acknowledgement
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        numbers = [str(number) for number in (listener.fileno(), servers, tools, seed)]
        command = [sys.executable, "-m", "benchmarks.throughput.fleet", *numbers]
        origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with subprocess.Popen(command, pass_fds=[listener.fileno()]) as process:
            try:
                ids = [server_id(number) for number in range(servers)]
                yield [FleetServer(name, f"{origin}/{name}/mcp") for name in ids]
            finally:
                process.kill()


def fleet_app(servers: int, tools: int, seed: int) -> Starlette:
    """Return an application with each server under a separate path."""
    offered = {
        name: mcp_server(name, [Tool.model_validate(tool) for tool in definitions(name, tools, seed)])
        for name in map(server_id, range(servers))
    }
    apps = [
        server.streamable_http_app(streamable_http_path=f"/{name}/mcp", stateless_http=True, json_response=True)
        for name, server in offered.items()
    ]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with AsyncExitStack() as running:
            for server in offered.values():
                await running.enter_async_context(server.session_manager.run())
            yield

    return Starlette(routes=[route for app in apps for route in app.routes], lifespan=lifespan)


def mcp_server(name: str, tools: Sequence[Tool]) -> Server[Any]:
    """Return a server that lists these tools, a page at a time."""

    async def list_tools(_: ServerRequestContext[Any], params: PaginatedRequestParams | None) -> ListToolsResult:
        start = int(params.cursor) if params and params.cursor else 0
        following = str(start + PAGE) if start + PAGE < len(tools) else None
        return ListToolsResult(tools=list(tools[start : start + PAGE]), next_cursor=following)

    return Server(name, version="1", on_list_tools=list_tools)


def main() -> None:
    """Serve until killed."""
    import uvicorn  # noqa: PLC0415  # only the program needs it

    descriptor, servers, tools, seed = map(int, sys.argv[1:])
    config = uvicorn.Config(fleet_app(servers, tools, seed), log_level="warning")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


if __name__ == "__main__":
    main()
