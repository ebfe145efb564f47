"""A transport's messages, watched on their way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakValueDictionary

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest, JSONRPCResponse

from query.calling.limits import Turn, current_turn

if TYPE_CHECKING:
    from types import TracebackType


class _ObservedStream:
    """A stream that is closed, entered and left as the one within."""

    def __init__(self, stream: Any, on_message: Callable[[object], None]) -> None:
        self._stream = stream
        self._on_message = on_message

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        left: bool | None = await self._stream.__aexit__(exc_type, exc_val, exc_tb)
        return left


class ObservedReceiveStream(_ObservedStream):
    """Incoming messages: says what came, and when nothing more can."""

    def __init__(self, stream: Any, on_message: Callable[[object], None], on_end: Callable[[], None]) -> None:
        super().__init__(stream, on_message)
        self._on_end = on_end

    async def receive(self) -> Any:
        """Return the next message.

        Raises:
            anyio.EndOfStream, anyio.ClosedResourceError: as the stream itself.
        """
        try:
            message = await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._on_end()
            raise
        self._on_message(message)
        return message

    def __aiter__(self) -> ObservedReceiveStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class ObservedSendStream(_ObservedStream):
    """Outgoing messages: says what is sent, in the context of who sends it."""

    async def send(self, message: Any) -> None:
        """Send a message, as the stream itself."""
        self._on_message(message)
        await self._stream.send(message)


class Unclaimed:
    """The turn that a connection's stream takes for what it reads, and passes on to the call that it is for."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        # a call that has ended, answered or not, is nobody's any more
        self._of_requests: WeakValueDictionary[str | int, Turn] = WeakValueDictionary()

    @property
    def awaits_a_turn(self) -> bool:
        """Return whether the stream waits, and with it all that comes after."""
        return self._turn.is_awaited

    def may_hold_much(self) -> bool:
        """Return whether what comes now may be large; asked in the context of what receives it."""
        return (current_turn.get() or self._turn).try_take()

    def note_sent(self, message: object) -> None:
        """Note whose request this is; called in the context of who sends it."""
        turn = current_turn.get()
        if turn and isinstance(message, SessionMessage) and isinstance(message.message, JSONRPCRequest):
            self._of_requests[message.message.id] = turn

    def claim(self, message: object) -> None:
        """Give what the stream took to the call that this message answers."""
        self._turn.pass_on(self._claimant(message))

    def _claimant(self, message: object) -> Turn | None:
        if isinstance(message, SessionMessage) and isinstance(message.message, JSONRPCResponse):
            return self._of_requests.pop(message.message.id, None)
        return None
