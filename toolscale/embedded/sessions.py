"""The sessions of clients over stdio: each has a connection from its front, in this process or in another."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import structlog
from anyio.abc import SocketListener, SocketStream
from mcp.shared.message import SessionMessage

from shared.service.process import caller_connections
from toolscale.embedded.streams import MAX_HELLO_BYTES, Hello, MessageStream, Welcome

if TYPE_CHECKING:
    from anyio.abc import ByteStream, TaskGroup
    from anyio.lowlevel import EventLoopToken
    from mcp.server import Server

ServerFor = Callable[[Hello], "Server[Any]"]
"""Returns the MCP server for a client."""

Refusal = Callable[[Hello], str | None]
"""Returns the reason why a client is refused, or None."""

CONNECTIONS = 256
"""Clients of other processes at a time; each is a process of this user."""
HELLO_WITHIN_S = 10.0
"""Seconds to the first line of a client."""
_RETRY_S = 1.0

_ENDED = (
    anyio.IncompleteRead,
    anyio.DelimiterNotFound,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    OSError,
)

_log = structlog.get_logger()


class Sessions:
    """An event loop in a thread that serves connections."""

    def __init__(self, server_for: ServerFor, refusal: Refusal) -> None:
        self._server_for = server_for
        self._refusal = refusal
        self._limit = min(CONNECTIONS, caller_connections())
        self._open = 0
        self._is_running = threading.Event()
        self._token: EventLoopToken
        self._tasks: TaskGroup

    def open_connection(self) -> socket.socket:
        """Return a connection for the front in this process."""
        ours, theirs = socket.socketpair()
        anyio.from_thread.run(self._adopt, theirs, token=self._token)
        return ours

    async def run(self, listener: socket.socket | None) -> None:
        """Serve the connections to this socket, and those of this process, until `stop`."""
        async with anyio.create_task_group() as self._tasks:
            self._token = anyio.lowlevel.current_token()
            self._is_running.set()
            if listener is None:
                await anyio.sleep_forever()
            else:
                async with await SocketListener.from_socket(listener) as accepted:
                    while True:
                        with suppress(anyio.BrokenResourceError):  # no file is left for a connection
                            await accepted.serve(self._serve, self._tasks)
                        await anyio.sleep(_RETRY_S)

    def wait(self) -> None:
        """Return as soon as connections can be opened."""
        self._is_running.wait()

    def stop(self) -> None:
        """End all sessions."""
        with suppress(anyio.RunFinishedError):
            anyio.from_thread.run_sync(self._tasks.cancel_scope.cancel, token=self._token)

    async def _adopt(self, connection: socket.socket) -> None:
        self._tasks.start_soon(self._serve, await SocketStream.from_socket(connection))

    async def _serve(self, stream: ByteStream) -> None:
        self._open += 1
        try:
            async with stream:
                await self._welcome(MessageStream(stream))
        except _ENDED:
            return  # the client has left
        except Exception:  # noqa: BLE001  # other sessions go on
            _log.exception("stdio_session_failed")
        finally:
            self._open -= 1

    async def _welcome(self, connection: MessageStream) -> None:
        with anyio.fail_after(HELLO_WITHIN_S):
            hello = Hello.model_validate_json(await connection.line(MAX_HELLO_BYTES))
        refusal = self._refusal(hello) if self._open <= self._limit else self._full()
        await connection.send_line(Welcome(refusal=refusal).model_dump_json())
        if refusal is None:
            await _run(self._server_for(hello), connection)

    def _full(self) -> str:
        clients = f"{self._limit} clients over stdio share its process, as many as the limit allows"
        return f"{clients}; end another client, and start this one again"


@contextmanager
def sessions_running(server_for: ServerFor, refusal: Refusal, listener: socket.socket | None) -> Generator[Sessions]:
    """Serve connections to the listener, which is closed at the end, until the block ends."""
    sessions = Sessions(server_for, refusal)
    thread = threading.Thread(target=anyio.run, args=(sessions.run, listener), name="stdio sessions", daemon=True)
    thread.start()
    try:
        sessions.wait()
        yield sessions
    finally:
        sessions.wait()  # an interrupt may come before the thread has begun
        sessions.stop()
        thread.join(timeout=5)


async def _run(server: Server[Any], connection: MessageStream) -> None:
    """Run the server on this connection until it ends."""
    to_server, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sent, from_server = anyio.create_memory_object_stream[SessionMessage](0)

    async def receive() -> None:
        async with to_server:
            async for message in connection.messages():
                await to_server.send(message)

    async def send() -> None:
        with suppress(*_ENDED):
            async for message in from_server:
                await connection.send(message)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        tasks.start_soon(send)
        await server.run(received, sent, server.create_initialization_options())
        tasks.cancel_scope.cancel()
