"""The listener of one server: connects, reconnects, and requests a reconciliation after each change."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import anyio
import structlog
from prometheus_client import Gauge

from shared.errors import NotificationsUnsupported, ServerError
from shared.upstream.target import Target
from workers.notifications.connection import listen

SERVERS = Gauge("toolscale_subscription_servers", "Servers to listen to, and those with a connection.", ["state"])
WANTED, CONNECTED = SERVERS.labels("wanted"), SERVERS.labels("connected")

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
    """Listens to one server until cancelled; no behaviour of the server ends it.

    `target` returns the server's current target, and `record_change` whether the event needs no repetition. Both are
    called in a thread, since they may block.
    """

    def __init__(
        self,
        server_id: str,
        target: Callable[[], Target],
        record_change: Callable[[], bool],
        limits: ConnectionLimits,
        policy: ReconnectPolicy,
    ) -> None:
        self._server_id = server_id
        self._target = target
        self._record_change = record_change
        self._limits = limits
        self._policy = policy
        self._changed = anyio.Event()
        self._connected_at = math.inf

    async def run(self) -> None:
        """Listen until cancelled."""
        backoff = Backoff(self._policy.first_retry_s, self._policy.longest_retry_s)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._record_changes)
            while True:
                wait_s = await self._until_lost(backoff)
                await anyio.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311  # spreads load, guards nothing

    async def _until_lost(self, backoff: Backoff) -> float:
        """Listen until the connection ends; return the wait before the next connection."""
        self._connected_at = math.inf
        try:
            await self._connect()
        except NotificationsUnsupported as error:
            _log.info("notifications_unsupported", server=self._server_id, reason=error.reason)
            return self._policy.unsupported_s
        except ServerError as error:
            _log.debug("subscription_closed", server=self._server_id, error=error.kind, reason=error.reason)
        finally:
            CONNECTED.dec(math.isfinite(self._connected_at))
        if time.monotonic() - self._connected_at >= self._policy.good_s:
            backoff.reset()
        return backoff.next_s()

    async def _connect(self) -> None:
        async with self._limits.connections:
            with ExitStack() as connecting:
                await self._limits.connecting.acquire()
                connecting.callback(self._limits.connecting.release)
                target = await anyio.to_thread.run_sync(self._target, abandon_on_cancel=True)

                def on_connected() -> None:
                    connecting.close()
                    self._connected_at = time.monotonic()
                    CONNECTED.inc()
                    _log.debug("subscription_opened", server=self._server_id)
                    self._changed.set()  # the tools may have changed before the connection was open

                await listen(
                    self._server_id,
                    target,
                    self._policy.connect_s,
                    on_connected=on_connected,
                    on_changed=lambda: self._changed.set(),
                )

    async def _record_changes(self) -> None:
        """Request a reconciliation after each change; the interval doubles while changes continue."""
        pause = Backoff(self._policy.least_between_s, self._policy.most_between_s)
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            if not await anyio.to_thread.run_sync(self._record_change, abandon_on_cancel=True):
                self._changed.set()
            await anyio.sleep(pause.next_s())
            if not self._changed.is_set():
                pause.reset()
