"""The MCP server that a client of `toolscale serve --stdio` talks to, from its first message to its last.

client ─▶ front ─┬─▶ early service: handshake, pings, and the built-in tools until a service is there
                 └─▶ link ─▶ the service, in this process or in that which holds the data directory

Requests that need the service wait for a link. If the link ends, requests that only read are repeated on the next.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import anyio.lowlevel
from anyio.abc import SocketStream
from mcp.server.lowlevel import NotificationOptions
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from query.server.early import early_service
from query.tools.registry import read_only_tools
from toolscale.embedded.link import Link
from toolscale.embedded.open_requests import CALL, OpenRequest, OpenRequests, error_answer
from toolscale.embedded.streams import MessageStream

if TYPE_CHECKING:
    import socket

    from anyio.abc import TaskGroup
    from anyio.lowlevel import EventLoopToken
    from anyio.streams.memory import MemoryObjectReceiveStream
    from mcp.types import JSONRPCMessage

# Shorter than the minute that usual clients wait for an answer.
WAIT_S = 50.0
# The early service answers what it received before the client closed its end.
LAST_ANSWERS_S = 1.0

STARTING = "Toolscale is still starting, or its data directory is in use. Try again in a few seconds."
MAY_HAVE_RUN = (
    "The Toolscale process that made this call has ended, so the call may have run. "
    "Check its effect before you call the tool again."
)

_LIST = "tools/list"


class Front:
    """The session of one client on stdin and stdout. Its event loop runs in a thread; all methods are for others.

    With a toolset, the list of tools changes as soon as the service is there.
    """

    def __init__(self, *, has_toolset: bool = False, wait_s: float = WAIT_S) -> None:
        self.is_listed = threading.Event()
        """Set when the client has the list of tools, waits for the service, or has left."""
        self.is_unlinked = threading.Event()
        """Set while there is no link to a service."""
        self.has_ended = threading.Event()
        """Set when the client has left."""
        self._has_toolset = has_toolset
        self._wait_s = wait_s
        self._open = OpenRequests(read_only_tools())
        self._link: Link | None = None
        self._handshake: JSONRPCRequest | None = None
        self._early_lists: dict[int | str, JSONRPCRequest] = {}
        self._listed: tuple[JSONRPCRequest, dict[str, Any]] | None = None
        self._failure: str | None = None
        self._is_running = threading.Event()
        self._token: EventLoopToken
        self._tasks: TaskGroup
        self._send: Callable[[SessionMessage], Awaitable[None]]

    def start(self) -> None:
        """Answer the client in a thread."""
        # a thread that waits for stdin cannot be interrupted; a daemon thread does not delay the end of the process
        threading.Thread(target=self._run, name="stdio", daemon=True).start()
        self._is_running.wait()

    def link(self, connection: socket.socket) -> None:
        """Send the requests of the client to the service at this connection, those that wait first."""
        self.is_unlinked.clear()
        self._call(self._linked, connection)

    def fail(self, reason: str) -> None:
        """Answer the requests that need the service with this reason, from now on."""
        self._call(self._failed, reason)

    def _call(self, function: Any, *arguments: Any) -> None:
        try:
            anyio.from_thread.run(function, *arguments, token=self._token)
        except anyio.RunFinishedError:
            return  # the client has left

    def _run(self) -> None:
        try:
            anyio.run(self._serve)
        finally:
            for event in (self._is_running, self.is_listed, self.is_unlinked, self.has_ended):
                event.set()

    async def _serve(self) -> None:
        self._token = anyio.lowlevel.current_token()
        to_early, early_received = anyio.create_memory_object_stream[SessionMessage | Exception](math.inf)
        early_sent, from_early = anyio.create_memory_object_stream[SessionMessage](0)
        server = early_service()
        options = server.create_initialization_options(NotificationOptions(tools_changed=self._has_toolset))
        async with stdio_server() as (received, to_client), anyio.create_task_group() as self._tasks:
            self._send = to_client.send
            self._tasks.start_soon(server.run, early_received, early_sent, options)
            async with anyio.create_task_group() as early:
                early.start_soon(self._deliver_early, from_early)
                self._is_running.set()
                async for message in received:
                    if not isinstance(message, SessionMessage) or not await self._is_forwarded(message.message):
                        to_early.send_nowait(message)
                to_early.close()
                early.cancel_scope.deadline = anyio.current_time() + LAST_ANSWERS_S
            self._tasks.cancel_scope.cancel()
            await to_client.aclose()

    async def _deliver_early(self, sent: MemoryObjectReceiveStream[SessionMessage]) -> None:
        async for message in sent:
            body = message.message
            request = self._early_lists.pop(body.id, None) if isinstance(body, JSONRPCResponse) else None
            if request and isinstance(body, JSONRPCResponse):
                self._listed = request, body.result
            await self._send(message)
            if request:
                self.is_listed.set()

    async def _is_forwarded(self, message: JSONRPCMessage) -> bool:
        """Forward a message that is for the service; return False if it is for the early service."""
        match message:
            case JSONRPCRequest() if self._needs_service(message):
                await self._forward(message)
            case JSONRPCRequest():
                self._note_early(message)
                return False
            case JSONRPCNotification(method="notifications/initialized"):
                return False
            case JSONRPCNotification(method="notifications/cancelled"):
                self._cancel(message)
            case _ if self._link:
                self._link.send(message)
            case _:
                pass  # an answer, or a notification, to a service that has ended
        return True

    def _note_early(self, request: JSONRPCRequest) -> None:
        if request.method == _LIST:
            self._early_lists[request.id] = request
        elif request.method == "initialize":
            self._handshake = request
            if self._link:
                self._link.greet(request)

    def _needs_service(self, request: JSONRPCRequest) -> bool:
        if request.method == _LIST:
            # without a handshake, there is no notification of a changed list
            changes_silently = self._has_toolset and not self._handshake
            return bool(self._link or changes_silently or (request.params or {}).get("cursor"))
        return request.method in (CALL, "resources/read")

    async def _forward(self, request: JSONRPCRequest) -> None:
        entry = self._open.add(request)
        if self._link:
            entry.is_sent = True
            self._link.send(request)
        else:
            await self._wait(entry)

    async def _wait(self, entry: OpenRequest) -> None:
        self.is_listed.set()
        if self._failure:
            await self._answer(entry, self._failure)
        else:
            self._tasks.start_soon(self._expire, entry)

    async def _expire(self, entry: OpenRequest) -> None:
        await anyio.sleep(self._wait_s)
        if self._open.is_waiting(entry):
            await self._answer(entry, STARTING)

    def _cancel(self, notification: JSONRPCNotification) -> None:
        entry = self._open.remove((notification.params or {}).get("requestId"))
        if entry and entry.is_sent and self._link:
            self._link.send(notification)

    async def _answer(self, entry: OpenRequest, reason: str) -> None:
        self._open.remove(entry.request.id)
        answer = error_answer(entry.request, reason, is_modern=self._handshake is None)
        await self._send(SessionMessage(answer))

    async def _linked(self, connection: socket.socket) -> None:
        try:
            stream = await SocketStream.from_socket(connection)
        except (OSError, ValueError):  # the service has ended already
            connection.close()
            self.is_unlinked.set()
            return
        link = self._link = Link(MessageStream(stream))
        if self._handshake:
            link.greet(self._handshake)
        if self._listed:
            request, self._listed = self._listed, None
            # the service records the list, as it does with every list that it sends
            link.ask(request[0], lambda result: self._compare(request[1], result))
        for entry in self._open.waiting():
            entry.is_sent = True
            link.send(entry.request)
        self._tasks.start_soon(self._exchange, link)

    async def _exchange(self, link: Link) -> None:
        await link.run(self._deliver)
        self._link = None
        for entry in self._open.lost():
            await (self._answer(entry, MAY_HAVE_RUN) if entry.is_sent else self._wait(entry))
        self.is_unlinked.set()

    async def _deliver(self, message: SessionMessage) -> None:
        body = message.message
        if isinstance(body, JSONRPCResponse | JSONRPCError) and not self._open.remove(body.id):
            return  # the client has cancelled the request
        await self._send(message)

    async def _compare(self, early: dict[str, Any], listed: dict[str, Any]) -> None:
        if early != listed:
            changed = JSONRPCNotification(jsonrpc="2.0", method="notifications/tools/list_changed")
            await self._send(SessionMessage(changed))

    async def _failed(self, reason: str) -> None:
        self._failure = reason
        for entry in self._open.waiting():
            await self._answer(entry, reason)
