"""The query service over stdin and stdout, for a client that starts it as its child."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio
from mcp.server.stdio import stdio_server

from query.caller import Caller, operator
from shared.service.process import ignore_interrupts

if TYPE_CHECKING:
    from mcp.server import Server
    from mcp.server.context import ServerRequestContext

    from shared.settings import Settings


def stdio_caller(settings: Settings) -> Callable[[ServerRequestContext[Any]], Caller]:
    """Return a function that names every caller over stdio the operator."""
    caller = operator(settings.stdio_groups, settings.stdio_toolset)
    return lambda _: caller


def serve_stdio(server: Server[Any]) -> None:
    """Serve one client until it closes our stdin, or until a signal raises in the main thread."""
    # a thread that waits for stdin cannot be interrupted; a daemon thread does not delay the end of the process
    serving = threading.Thread(target=anyio.run, args=(_serve, server), name="stdio", daemon=True)
    serving.start()
    serving.join()
    ignore_interrupts()


async def _serve(server: Server[Any]) -> None:
    async with stdio_server() as (received, sent):
        await server.run(received, sent, server.create_initialization_options())
