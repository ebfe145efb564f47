"""A transport's messages, watched on their way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from types import TracebackType


class Heard:
    """Incoming messages: says what came, and when nothing more can."""

    def __init__(self, stream: Any, on_message: Callable[[object], None], on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_message = on_message
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

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    def __aiter__(self) -> Heard:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Heard:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        left: bool | None = await self._stream.__aexit__(exc_type, exc_val, exc_tb)
        return left


class Said:
    """Outgoing messages: says what is sent, in the context of who sends it."""

    def __init__(self, stream: Any, on_message: Callable[[object], None]) -> None:
        self._stream = stream
        self._on_message = on_message

    async def send(self, message: Any) -> None:
        """Send a message, as the stream itself."""
        self._on_message(message)
        await self._stream.send(message)

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    async def __aenter__(self) -> Said:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        left: bool | None = await self._stream.__aexit__(exc_type, exc_val, exc_tb)
        return left
