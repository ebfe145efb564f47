"""Clients that listen hear when the tools of their toolset change: `subscriptions/listen` of 2026-07-28.

A process looks at the toolset of each caller that listens every POLL_S seconds, and at none while none does. So each
replica of the service sees a change by itself, whichever process wrote it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import Context
from typing import TYPE_CHECKING, Any

import anyio
import structlog
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp_types import SubscriptionFilter

from query.turns import run_in_thread
from shared.errors import CallsExhausted, IndexUnavailable

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp_types import SubscriptionsListenRequestParams, SubscriptionsListenResult

    from query.caller import Caller
    from query.tools.toolset_tools import Toolsets

LISTEN = "subscriptions/listen"
POLL_S = 3.0
"""Seconds between two looks at a toolset; each reads the toolset, and the records of servers that changed."""
# Each client over stdio listens once, and all of them are the operator.
MOST_OF_CALLER = 64

Tools = frozenset[int]

_log = structlog.get_logger()


class Listening:
    """The streams of clients that listen, in one event loop. Without a toolset, a caller's tools never change."""

    def __init__(self, toolsets: Toolsets | None) -> None:
        self._toolsets = toolsets
        self._watches: dict[Caller, _Watch] = {}
        self._of_caller: Counter[str] = Counter()

    async def listen(
        self, caller: Caller, context: ServerRequestContext[Any], params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        """Notify the client of a caller, which has no toolset scope yet, until it leaves.

        Raises:
            CallsExhausted: the caller listens as often as the limit allows, or too many of its requests wait.
            IndexUnavailable: the toolset cannot be read now.
        """
        if self._of_caller[caller.name] >= MOST_OF_CALLER:
            limit = f"{caller.name} listens {MOST_OF_CALLER} times, as often as the limit per caller allows"
            raise CallsExhausted(f"{limit}; end one of these requests first")
        # no other changes are seen, so the acknowledgement promises none
        wanted = SubscriptionFilter(tools_list_changed=params.notifications.tools_list_changed)
        async with self._watched(caller) as watch:
            return await watch.handler(context, params.model_copy(update={"notifications": wanted}))

    @asynccontextmanager
    async def _watched(self, caller: Caller) -> AsyncGenerator[_Watch]:
        """Yield the watch of this caller's toolset, which ends with the last block."""
        watch = self._watches.setdefault(caller, _Watch(lambda: self._tools(caller)))
        watch.listeners += 1
        self._of_caller[caller.name] += 1
        try:
            if caller.toolset:
                await watch.look()  # before the acknowledgement, after which a client lists the tools
                watch.start()
            yield watch
        finally:
            watch.listeners -= 1
            self._of_caller[caller.name] -= 1
            if not watch.listeners:
                watch.stop()
                del self._watches[caller]

    async def _tools(self, caller: Caller) -> Tools:
        return await run_in_thread(caller.name, _tools_of, self._toolsets, caller) if self._toolsets else Tools()


def _tools_of(toolsets: Toolsets, caller: Caller) -> Tools:
    _, direct = toolsets.caller_and_direct(caller)
    return Tools(hash(handler.definition_text) for handler in direct.handlers)


class _Watch:
    """The tools of one caller's toolset as they were last seen, and the streams of its clients."""

    def __init__(self, read: Callable[[], Awaitable[Tools]]) -> None:
        self._read = read
        self._bus = InMemorySubscriptionBus()
        self.handler = ListenHandler(self._bus)
        self.listeners = 0
        self._seen: Tools | None = None
        self._polling: asyncio.Task[None] | None = None

    async def look(self) -> None:
        """Read the tools, and notify the clients if they are others than before."""
        tools, before = await self._read(), self._seen
        self._seen = tools
        if before is not None and tools != before:
            await self._bus.publish(ToolsListChanged())

    def start(self) -> None:
        """Look again and again, until `stop`."""
        if self._polling is None:
            # an empty context: the log and the trace of the request that came first are not those of the watch
            self._polling = asyncio.create_task(self._poll(), context=Context())

    def stop(self) -> None:
        """Look no more."""
        if self._polling is not None:
            self._polling.cancel()

    async def _poll(self) -> None:
        while True:
            await anyio.sleep(POLL_S)
            try:
                await self.look()
            except (CallsExhausted, IndexUnavailable):
                pass  # requests log it, and a later look sees the change
            except Exception:  # noqa: BLE001  # nobody awaits this task
                _log.exception("toolset_watch_failed")
