"""MCP messages over a socket, one JSON line each, between a client's front and the service."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter
from pydantic import BaseModel, ValidationError

if TYPE_CHECKING:
    from pathlib import Path

    from anyio.abc import ByteStream

# Both ends are processes of one user; the limit only bounds a line without an end.
MAX_LINE_BYTES = 1 << 30
MAX_HELLO_BYTES = 1 << 16


class Hello(BaseModel):
    """The first line of a front: the operator's groups and toolset, and the `mcp.json` of its command."""

    groups: frozenset[str] | None = None
    toolset: str | None = None
    config: str | None = None


class Welcome(BaseModel):
    """The first line of the service: the reason of a refusal, or None."""

    refusal: str | None = None


class MessageStream:
    """A connection: lines of the greeting first, then messages."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._received = BufferedByteReceiveStream(stream)

    async def line(self, limit: int = MAX_LINE_BYTES) -> bytes:
        """Return the next line.

        Raises:
            anyio.IncompleteRead: the connection has ended.
            anyio.DelimiterNotFound: the line has more than `limit` bytes.
        """
        return await self._received.receive_until(b"\n", limit)

    async def send_line(self, line: str) -> None:
        """Send a line."""
        await self._stream.send(line.encode() + b"\n")

    async def messages(self) -> AsyncGenerator[SessionMessage]:
        """Yield messages until the connection, or its protocol, ends."""
        while True:
            try:
                line = await self.line()
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except (ValidationError, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
                return
            yield SessionMessage(message)

    async def send(self, message: SessionMessage) -> None:
        """Send a message."""
        await self.send_line(message.message.model_dump_json(by_alias=True, exclude_unset=True))

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()


def hello_of(groups: frozenset[str] | None, toolset: str | None, config: Path | None) -> Hello:
    """Return the greeting of a front with these settings."""
    return Hello(groups=groups, toolset=toolset, config=str(config.resolve()) if config else None)
