"""The connections for calls, in one event loop and thread.

They outlive the request that opened them, and end with the service however it is served.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from query.calling.connection import CallLimits
from query.calling.endpoints import Dial, TargetResolver
from query.calling.failover import ReplicaCalls, ReplicatedCall, Served
from query.calling.limits import Admission
from query.calling.pool import CallResources, Pool
from shared.service.process import full_environment
from shared.upstream.dial import dialler_for
from shared.upstream.target import STDIO_START_TIMEOUT_S

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from query.calling.upstream_request import ReadResult, ResourceRead
    from shared.catalog import Endpoint
    from shared.settings import Settings


class Upstreams:
    """Calls tools, and reads resources, on the servers that own them. Safe to use from any event loop and thread."""

    def __init__(self, resolve_target: Dial, limits: CallLimits) -> None:
        """The first call opens the thread and its first connection."""
        self.admission = Admission(limits.per_caller, limits.large_at_once)
        self._resolve_target = resolve_target
        self._limits = limits
        self._opening = threading.Lock()
        self._opened = ExitStack()
        self._running: tuple[BlockingPortal, ReplicaCalls] | None = None

    async def call(self, call: ReplicatedCall, resources: CallResources) -> Served:
        """Call a tool on one of its servers and return the result; cancellation is sent to the server.

        Raises:
            ServerError, CallsExhausted: from `ReplicaCalls.call`.
        """
        portal, calls = self._started()
        return await asyncio.wrap_future(portal.start_task_soon(calls.call, call, resources))

    async def read(self, read: ResourceRead, endpoint: Endpoint, resources: CallResources) -> ReadResult:
        """Read a resource from its server; cancellation is sent to the server.

        Raises:
            ServerError, CallsExhausted: from `Pool.call`.
        """
        portal, calls = self._started()
        return await asyncio.wrap_future(portal.start_task_soon(calls.read, read, endpoint, resources))

    def close(self) -> None:
        """End all calls, connections and child processes."""
        with self._opening:
            self._opened.close()
            self._running = None

    def _started(self) -> tuple[BlockingPortal, ReplicaCalls]:
        with self._opening:
            if self._running is None:
                portal = self._opened.enter_context(start_blocking_portal(name="toolscale upstreams"))
                stop = portal.call(anyio.Event)
                ended, calls = portal.start_task(self._keep_pool, stop)
                self._opened.callback(ended.result)
                self._opened.callback(portal.call, stop.set)
                self._running = portal, calls
            return self._running

    async def _keep_pool(self, stop: anyio.Event, *, task_status: TaskStatus[ReplicaCalls]) -> None:
        with closing(TargetResolver(self._resolve_target)) as resolver:
            async with anyio.create_task_group() as tasks:
                pool = Pool(tasks, resolver, self._limits, self.admission)
                task_status.started(ReplicaCalls(pool, tasks, self._limits))
                await stop.wait()
                tasks.cancel_scope.cancel()


def upstreams_of(settings: Settings) -> Upstreams:
    """Return the upstreams with the operator's limits."""
    limits = CallLimits(
        timeout_s=settings.call_timeout_s,
        start_timeout_s=STDIO_START_TIMEOUT_S,
        max_connections=settings.call_max_connections,
        per_caller=settings.call_max_per_caller,
    )
    return Upstreams(dialler_for(settings, full_environment()).target, limits)
