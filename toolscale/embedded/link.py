"""A front's connection to a service."""

from __future__ import annotations

import math
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

if TYPE_CHECKING:
    from toolscale.embedded.streams import MessageStream

OnResult = Callable[[dict[str, Any]], Awaitable[None]]


async def ignore(_: dict[str, Any]) -> None:
    """Do nothing with a result."""


class Link:
    """A connection that forwards a client's messages, and sends requests of the front beside them."""

    def __init__(self, connection: MessageStream) -> None:
        self._connection = connection
        self._outgoing, self._queued = anyio.create_memory_object_stream[JSONRPCMessage](math.inf)
        self._own: dict[int | str, OnResult] = {}

    def send(self, message: JSONRPCMessage) -> None:
        """Send a message after all earlier ones."""
        self._outgoing.send_nowait(message)

    def ask(self, request: JSONRPCRequest, on_result: OnResult = ignore) -> None:
        """Send the request under an id of the front; the client never receives the answer."""
        own = f"toolscale-{uuid.uuid4().hex}"
        self._own[own] = on_result
        self.send(request.model_copy(update={"id": own}))

    def greet(self, handshake: JSONRPCRequest) -> None:
        """Repeat the handshake of the client, which the early service has answered."""
        self.ask(handshake)
        self.send(JSONRPCNotification(jsonrpc="2.0", method="notifications/initialized"))

    async def run(self, deliver: Callable[[SessionMessage], Awaitable[None]]) -> None:
        """Exchange messages until the service ends the connection."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_queued)
            async for message in self._connection.messages():
                if not await self._is_own(message.message):
                    await deliver(message)
            tasks.cancel_scope.cancel()
        await self._connection.aclose()

    async def _send_queued(self) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # `run` notices it too
            async for message in self._queued:
                await self._connection.send(SessionMessage(message))

    async def _is_own(self, message: JSONRPCMessage) -> bool:
        if not isinstance(message, JSONRPCResponse | JSONRPCError) or message.id not in self._own:
            return False
        on_result = self._own.pop(message.id)
        if isinstance(message, JSONRPCResponse):
            await on_result(message.result)
        return True
