"""The listener of one server: connects, reconnects, and requests a reconciliation after each change."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import anyio
import structlog

from shared.errors import NotificationsUnsupported, ServerError
from shared.upstream.dial import Target
from workers.notifications.connection import NotificationCallbacks, listen
from workers.notifications.metrics import NotificationMetrics

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ReconnectPolicy:
    """Times in seconds.

    Two events for one server are `least_between_s` apart, doubling to `most_between_s` while its changes continue.
    A reconnection waits `first_retry_s`, doubling to `longest_retry_s`, with a random reduction of up to half.
    A connection that lasted `good_s` resets that backoff.
    `unsupported_s` is the wait after a server that sends no notifications.
    """

    connect_s: float = 30.0
    least_between_s: float = 1.0
    most_between_s: float = 60.0
    first_retry_s: float = 1.0
    longest_retry_s: float = 300.0
    good_s: float = 60.0
    unsupported_s: float = 3600.0


DEFAULT_RECONNECT = ReconnectPolicy()


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits on open connections, and on connections that are being established."""

    connections: anyio.CapacityLimiter
    connecting: anyio.Semaphore = field(default_factory=lambda: anyio.Semaphore(16))


@dataclass(frozen=True, slots=True)
class ListenerDependencies:
    """Callables of a listener.

    `target` returns the server's current target, and may block.
    `request_reconcile` returns whether the event was recorded.
    """

    target: Callable[[], Target]
    request_reconcile: Callable[[], Awaitable[bool]]


class Backoff:
    """Seconds to wait before a retry: doubling from `first_s` up to `longest_s`."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = self._next_s = first_s
        self._longest_s = longest_s

    def next_s(self) -> float:
        """Return the wait, and double the next one."""
        wait_s, self._next_s = self._next_s, min(self._longest_s, self._next_s * 2)
        return wait_s

    def reset(self) -> None:
        """Return to the first wait after a success."""
        self._next_s = self._first_s


class Listener:
    """Listens to one server until cancelled; no behaviour of the server ends it."""

    def __init__(
        self,
        server_id: str,
        dependencies: ListenerDependencies,
        limits: ConnectionLimits,
        policy: ReconnectPolicy,
        metrics: NotificationMetrics,
    ) -> None:
        self._server_id = server_id
        self._dependencies = dependencies
        self._limits = limits
        self._policy = policy
        self._metrics = metrics
        self._changed = anyio.Event()
        self._connected_at = math.inf

    async def run(self) -> None:
        """Listen until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._request_reconciles)
            await self._stay_connected()

    async def _stay_connected(self) -> None:
        backoff = Backoff(self._policy.first_retry_s, self._policy.longest_retry_s)
        while True:
            wait_s = await self._until_lost(backoff)
            await anyio.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311  # spreads load, guards nothing

    async def _until_lost(self, backoff: Backoff) -> float:
        """Listen until the connection ends; return the wait before the next connection."""
        self._connected_at = math.inf
        try:
            with self._metrics.connection() as opened:
                await self._connect(opened)
        except NotificationsUnsupported as error:
            _log.info("notifications_unsupported", server=self._server_id, reason=error.reason)
            return self._policy.unsupported_s
        except ServerError as error:
            _log.debug("subscription_closed", server=self._server_id, error=error.kind, reason=error.reason)
        if time.monotonic() - self._connected_at >= self._policy.good_s:
            backoff.reset()
        return backoff.next_s()

    async def _connect(self, opened: Callable[[], None]) -> None:
        async with self._limits.connections:
            with ExitStack() as connecting:
                await self._limits.connecting.acquire()
                connecting.callback(self._limits.connecting.release)
                target = await anyio.to_thread.run_sync(self._dependencies.target, abandon_on_cancel=True)

                def connected() -> None:
                    connecting.close()
                    opened()
                    self._note_connection()

                callbacks = NotificationCallbacks(connected, self._note_change, self._metrics.count_notification)
                await listen(self._server_id, target, callbacks, self._policy.connect_s)

    def _note_connection(self) -> None:
        """Request a reconciliation: the tools may have changed before the connection was open."""
        _log.debug("subscription_opened", server=self._server_id)
        self._note_change()
        self._connected_at = time.monotonic()

    def _note_change(self) -> None:
        self._changed.set()

    async def _request_reconciles(self) -> None:
        """Request a reconciliation after each change; the interval doubles while changes continue."""
        pause = Backoff(self._policy.least_between_s, self._policy.most_between_s)
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            if not await self._dependencies.request_reconcile():
                self._changed.set()
            await anyio.sleep(pause.next_s())
            if not self._changed.is_set():
                pause.reset()
