"""Listings of stdio servers by the process that serves calls: of some servers only one can run.

A container with a name, a locked profile or database, and a fixed port let no second process start beside it. Workers
list in threads of their own, and the connection lives in the event loop of calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Self, TypeVar

import anyio
from mcp_types import Implementation, ListToolsResult, ServerCapabilities
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from shared.catalog import ServerRecord
from shared.errors import CallsExhausted, ServerError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from mcp import Client

    from query.calling.connection import Connection
    from query.calling.upstreams import Upstreams
    from shared.events import ServerAnnouncement
    from shared.upstream.session import SessionState

T = TypeVar("T")

_POLL_S = 0.05
_FREE_S = 1.0


class SharedSession:
    """The session of calls with a stdio server, for a listing in another event loop; the block opens it if need be."""

    mode = "auto"

    def __init__(self, sessions: SharedSessions, announcement: ServerAnnouncement, *, is_older: bool) -> None:
        """`is_older`: the server is known to need the handshake of earlier protocols."""
        self._sessions = sessions
        self._server = ServerRecord(
            server_id=announcement.server_id,
            endpoint=announcement.endpoint,
            labels=dict(announcement.labels),
            protocol_version=HANDSHAKE_PROTOCOL_VERSIONS[-1] if is_older else None,
        )
        self._connection: Connection | None = None
        self._holding: Future[None] | None = None
        self._opened: Future[Client] = Future()
        self._listed = asyncio.Event()
        self._page: list[object] = []

    async def __aenter__(self) -> Self:
        """Open the session, or join that of a caller.

        Raises:
            ServerError: it cannot be opened.
        """
        while (loop := self._sessions.loop) is None:  # noqa: ASYNC110  # it starts in another thread
            await anyio.sleep(_POLL_S)
        self._holding = asyncio.run_coroutine_threadsafe(self._hold(), loop)
        try:
            client = await self._unless_ending(asyncio.wrap_future(self._opened))
        except BaseException:
            self._holding.cancel()
            raise
        self.protocol_version: str = client.protocol_version
        self.server_info: Implementation | None = client.server_info
        self.server_capabilities: ServerCapabilities = client.server_capabilities
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        assert self._holding
        if exc_type is None and (loop := self._sessions.loop):
            loop.call_soon_threadsafe(self._listed.set)
        else:
            self._holding.cancel()

    async def _hold(self) -> None:
        """Keep the session open, in its event loop, until the listing ends."""
        while not self._opened.done():
            try:
                async with self._sessions.of(self._server) as connection:
                    self._connection = connection
                    await connection.opened()
                    self._opened.set_result(connection.client)
                    await self._listed.wait()
            except CallsExhausted:
                await anyio.sleep(_FREE_S)
            except Exception as error:
                if self._opened.done():
                    raise
                self._opened.set_exception(error)

    async def list_tools(self, *, cursor: str | None) -> ListToolsResult:
        """Return a page without its tools, which `take_page` returns.

        Raises:
            MCPError: the server's answer is an error.
            ServerError: the connection broke.
        """
        assert self._connection
        while (loop := self._sessions.loop) is None:  # noqa: ASYNC110  # this process ends, and interrupts its listings
            await anyio.sleep(_POLL_S)
        asked = asyncio.run_coroutine_threadsafe(self._connection.tools_page(cursor), loop)
        page = await self._unless_ending(asyncio.wrap_future(asked))
        page = {key: value for key, value in page.items() if value is not None}
        tools = page.get("tools")
        self._page = tools if isinstance(tools, list) else []
        return ListToolsResult.model_validate({**page, "tools": [] if isinstance(tools, list) else tools})

    def take_page(self) -> list[object]:
        """Return the raw tools of the last page, once."""
        page, self._page = self._page, []
        return page

    def describe(self, state: SessionState) -> None:
        """Let another state, whose listing has failed, have what this session observed."""
        if self._connection:
            self._connection.describe(state)

    async def _unless_ending(self, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except ServerError:
            if self._sessions.loop is None:  # this process ends, and interrupts its listings: no server is at fault
                await anyio.sleep_forever()
            raise


class SharedSessions:
    """The sessions that listings share with calls, once there are `upstreams`."""

    def __init__(self) -> None:
        self.upstreams: Upstreams | None = None

    def __call__(self, announcement: ServerAnnouncement, is_older: bool) -> SharedSession:
        """Return the session of a stdio server; `is_older`: it needs the handshake of earlier protocols."""
        return SharedSession(self, announcement, is_older=is_older)

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """Return the event loop of the sessions, None before it starts and after its end."""
        return self.upstreams.loop if self.upstreams else None

    def of(self, server: ServerRecord) -> AbstractAsyncContextManager[Connection]:
        """Return the connection to a stdio server for a listing."""
        assert self.upstreams
        return self.upstreams.listed(server)
