"""The messages of a connection: observed on their way, and the slots for large ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest, JSONRPCResponse
from typing_extensions import override

from query.calling.limits import ResultSlot
from shared.upstream.session import HttpExchange, current_exchange


class ObservedReceiveStream(ObjectReceiveStream[Any]):
    """Awaits `on_message` with each incoming item, and calls `on_end` when the stream ends."""

    def __init__(self, stream: Any, on_message: Callable[[Any], Awaitable[None]], on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_message = on_message
        self._on_end = on_end

    @override
    async def receive(self) -> Any:
        try:
            item = await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._on_end()
            raise
        await self._on_message(item)
        return item

    @override
    async def aclose(self) -> None:
        await self._stream.aclose()


class ObservedSendStream(ObjectSendStream[Any]):
    """Calls `on_message` with each outgoing item, in the sender's context, and `on_sent` once it was taken."""

    def __init__(self, stream: Any, on_message: Callable[[Any], None], on_sent: Callable[[Any], None]) -> None:
        self._stream = stream
        self._on_message = on_message
        self._on_sent = on_sent

    @override
    async def send(self, item: Any) -> None:
        self._on_message(item)
        await self._stream.send(item)
        self._on_sent(item)

    @override
    async def aclose(self) -> None:
        await self._stream.aclose()


@dataclass(slots=True, kw_only=True)
class CallExchange(HttpExchange):
    """The exchange of one call, with the slot for its result."""

    slot: ResultSlot


class MessageSlots:
    """The slots for the large messages of one connection.

    An HTTP response belongs to one call and acquires that call's slot. A stream that calls share acquires the
    connection's own slot; after parsing, the answered call acquires its slot instead.
    """

    def __init__(self, own: ResultSlot) -> None:
        self.own = own
        self._by_request: WeakValueDictionary[str | int, ResultSlot] = WeakValueDictionary()

    def try_acquire(self) -> bool:
        """Return whether the message that is being read may be large."""
        return (_slot_of_call() or self.own).try_acquire()

    def on_sent(self, message: object) -> None:
        """Remember the slot of the call that sends this request."""
        slot = _slot_of_call()
        if slot and isinstance(message, SessionMessage) and isinstance(message.message, JSONRPCRequest):
            self._by_request[message.message.id] = slot

    def on_received(self, message: object) -> None:
        """Move a large message from the connection's own slot to that of the call it answers, which then keeps it."""
        slot: ResultSlot | None = None
        if isinstance(message, SessionMessage) and isinstance(message.message, JSONRPCResponse):
            slot = self._by_request.get(message.message.id)
        if slot is None:
            self.own.release()
            return
        slot.settle()
        self.own.hand_over(slot)


def _slot_of_call() -> ResultSlot | None:
    exchange = current_exchange.get()
    return exchange.slot if isinstance(exchange, CallExchange) else None
