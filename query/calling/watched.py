"""A transport's incoming messages, watched on their way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from types import TracebackType


class Watched:
    """A stream that says when something came, and when it has ended."""

    def __init__(self, stream: Any, on_message: Callable[[], None], on_end: Callable[[], None]) -> None:
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
        self._on_message()
        return message

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    def __aiter__(self) -> Watched:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Watched:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        left: bool | None = await self._stream.__aexit__(exc_type, exc_val, exc_tb)
        return left
