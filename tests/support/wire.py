"""An MCP client in memory that keeps every message of its connection, as JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Self

from mcp import Client
from mcp.client._memory import InMemoryTransport
from mcp.server import Server
from mcp.shared.message import SessionMessage

Message = dict[str, Any]


@asynccontextmanager
async def recorded_client(server: Server[Any], messages: list[Message], mode: str) -> AsyncGenerator[Client]:
    """Yield a client of this server; each message, sent or received, is added to `messages`."""

    @asynccontextmanager
    async def transport() -> AsyncGenerator[tuple[Any, Any]]:
        async with InMemoryTransport(server) as (read, write):
            yield _Tapped(read, messages), _Tapped(write, messages)

    async with Client(transport(), mode=mode) as client:
        yield client


def exchanges(messages: list[Message]) -> list[tuple[str, Message, Message | None]]:
    """Return the method, the parameters and the result of each request; None where it ended in an error."""
    asked = {message["id"]: message for message in messages if "method" in message and "id" in message}
    answers = [message for message in messages if "id" in message and "method" not in message]
    requests = [(asked[message["id"]], message.get("result")) for message in answers]
    return [(request["method"], request.get("params") or {}, result) for request, result in requests]


class _Tapped:
    """A stream of messages that are kept."""

    def __init__(self, stream: Any, messages: list[Message]) -> None:
        self._stream = stream
        self._messages = messages

    async def send(self, item: SessionMessage) -> None:
        self._keep(item)
        await self._stream.send(item)

    async def receive(self) -> SessionMessage:
        return self._keep(await self._stream.receive())

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage:
        return self._keep(await self._stream.__anext__())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _keep(self, item: SessionMessage) -> SessionMessage:
        self._messages.append(json.loads(item.message.model_dump_json(by_alias=True, exclude_none=True)))
        return item
