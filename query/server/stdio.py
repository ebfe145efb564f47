"""The query service over stdin and stdout, for a client that starts it as its child."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mcp.server.stdio import stdio_server

from query.caller import Caller, operator
from shared.service.process import ignore_interrupts

if TYPE_CHECKING:
    from mcp.server import Server
    from mcp.server.context import ServerRequestContext

    from shared.settings import Settings

# The connections to servers have these seconds to end after a signal, with their child processes.
END_S = 5.0


def stdio_caller(settings: Settings) -> Callable[[ServerRequestContext[Any]], Caller]:
    """Return a function that names every caller over stdio the operator."""
    caller = operator(settings.stdio_groups, settings.stdio_toolset)
    return lambda _: caller


def serve_stdio(server: Server[Any]) -> None:
    """Serve one client until it closes our stdin, or until a signal raises in the main thread."""
    ended, loop = threading.Event(), asyncio.new_event_loop()
    serving = loop.create_task(_serve(server, ended))
    # a thread that waits for stdin cannot be interrupted; a daemon thread does not delay the end of the process
    thread = threading.Thread(target=loop.run_until_complete, args=(serving,), name="stdio", daemon=True)
    thread.start()
    try:
        thread.join()
    finally:
        ignore_interrupts()
        if not ended.is_set():
            loop.call_soon_threadsafe(serving.cancel)
            ended.wait(END_S)


async def _serve(server: Server[Any], ended: threading.Event) -> None:
    async with stdio_server() as (received, sent):
        try:
            await server.run(received, sent, server.create_initialization_options())
        finally:
            ended.set()
