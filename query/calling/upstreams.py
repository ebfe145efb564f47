"""The connections to the servers that are called, in an event loop and a thread of their own.

Of their own, so that they outlive the request that opened them, and end with the service however it is served.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from query.calling.connection import CallLimits, ToolCall
from query.calling.pool import Pool
from query.calling.relay import ProgressRelay
from shared.catalog import Endpoint
from shared.upstream.dial import Target
from shared.upstream.operators import operators_dialler

if TYPE_CHECKING:
    from anyio.abc import TaskStatus
    from mcp_types import CallToolResult, InputRequiredResult

    from shared.settings import Settings

    Answer = CallToolResult | InputRequiredResult

Dial = Callable[[str, Endpoint], Target]
"""Turns a server's id and endpoint into what may be connected to; blocks, and raises a ServerError."""


class Upstreams:
    """Calls tools on the servers that own them. Safe to use from any event loop and thread, until it is closed."""

    def __init__(self, dial: Dial, limits: CallLimits) -> None:
        """Connections, and the thread they live in, are opened by the first call."""
        self._dial = dial
        self._limits = limits
        self._opening = threading.Lock()
        self._opened = ExitStack()
        self._running: tuple[BlockingPortal, Pool] | None = None

    async def call(self, call: ToolCall, endpoint: Endpoint, progress: ProgressRelay) -> Answer:
        """Call a tool on its server and return what that answers; cancelling this cancels the call there.

        Raises:
            AddressForbidden: the endpoint may not be connected to.
            ServerError, CallsExhausted: as of `Pool.call`.
        """
        target = await anyio.to_thread.run_sync(self._dial, call.server_id, endpoint)
        portal, pool = self._started()
        return await asyncio.wrap_future(portal.start_task_soon(pool.call, call, target, progress))

    def close(self) -> None:
        """End all calls and connections, and the children that were started for them."""
        with self._opening:
            self._opened.close()
            self._running = None

    def _started(self) -> tuple[BlockingPortal, Pool]:
        with self._opening:
            if self._running is None:
                portal = self._opened.enter_context(start_blocking_portal(name="toolscale upstreams"))
                stop = portal.call(anyio.Event)
                ended, pool = portal.start_task(_keep_pool, self._limits, stop)
                self._opened.callback(ended.result)
                self._opened.callback(portal.call, stop.set)
                self._running = portal, pool
            return self._running


async def _keep_pool(limits: CallLimits, stop: anyio.Event, *, task_status: TaskStatus[Pool]) -> None:
    async with anyio.create_task_group() as tasks:
        task_status.started(Pool(tasks, limits))
        await stop.wait()
        tasks.cancel_scope.cancel()


def upstreams_of(settings: Settings) -> Upstreams:
    """Return the way to call tools within the operator's guards."""
    limits = CallLimits(
        timeout_s=settings.call_timeout_s,
        max_message_bytes=settings.call_max_message_bytes,
        max_connections=settings.call_max_connections,
        idle_s=settings.call_idle_s,
    )
    return Upstreams(operators_dialler(settings, os.environ).target, limits)
