"""The query service over stdin and stdout, for a client that starts it as its child."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio
from mcp.server.stdio import stdio_server

from query.caller import Caller, operator

if TYPE_CHECKING:
    from mcp.server import Server
    from mcp.server.context import ServerRequestContext

    from shared.settings import Settings


def stdio_caller(settings: Settings) -> Callable[[ServerRequestContext[Any]], Caller]:
    """Return how the caller over stdio is known: as the operator, whose child or parent it is."""
    caller = operator(settings.stdio_groups, settings.stdio_toolset)
    return lambda _: caller


def serve_stdio(server: Server[Any]) -> None:
    """Serve one client until it closes our stdin, or until a signal raises in the main thread."""
    # nothing interrupts a thread that waits for stdin: only as a daemon it does not hold up the end of the process
    serving = threading.Thread(target=anyio.run, args=(_serve, server), name="stdio", daemon=True)
    serving.start()
    serving.join()


async def _serve(server: Server[Any]) -> None:
    async with stdio_server() as (received, sent):
        await server.run(received, sent, server.create_initialization_options())
