"""Keeps a listener for every server that should run according to the intents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import anyio
import structlog
from anyio.abc import TaskGroup
from pydantic import ValidationError

from shared.catalog import Endpoint
from shared.errors import EventInvalid, IntentsUnavailable
from shared.events import ServerChanged, ServerRef
from shared.intents.intents import Intents
from shared.observability.failures import FailureLog
from shared.settings import Subscribe
from shared.upstream.dial import Dialler, StdioTarget, Target
from workers.notifications.listener import (
    DEFAULT_RECONNECT,
    ConnectionLimits,
    Listener,
    ListenerDependencies,
    ReconnectPolicy,
)
from workers.notifications.metrics import NotificationMetrics
from workers.notifications.running_servers import RunningServers, kills_workers
from workers.sources.announcer import Emit

POLL_S = 2.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _ListenTarget:
    """A server's address; a different endpoint, command or header needs a new connection."""

    endpoint: Endpoint
    configured: Target | None

    @property
    def is_stdio(self) -> bool:
        """Return whether the connection needs a child process."""
        return isinstance(self.configured, StdioTarget) or self.endpoint.transport == "stdio"


@dataclass(frozen=True, slots=True)
class SubscriptionPolicy:
    """How to dial servers, which servers to listen to, and the limit on connections."""

    configured: Callable[[], Mapping[str, Target]]
    dialler: Dialler
    listen: Subscribe
    max_connections: int


class ListenerSupervisor:
    """Keeps a listener for each server that runs, was listed, and does not kill its workers.

    Each poll calls `may_listen`, whose False closes all connections, and after success `beat`.
    A failed server affects only its own listener.

    While two processes change places, both may listen to a server, or none. Each new connection requests a
    reconciliation, so no change is lost.
    """

    def __init__(
        self,
        source: str,
        intents: Intents,
        emit: Emit,
        policy: SubscriptionPolicy,
        *,
        may_listen: Callable[[], bool] = lambda: True,
        beat: Callable[[], None] = lambda: None,
        metrics: NotificationMetrics | None = None,
        reconnect: ReconnectPolicy = DEFAULT_RECONNECT,
        poll_s: float = POLL_S,
    ) -> None:
        self._source = source
        self._intents = intents
        self._servers = RunningServers(intents)
        self._may_listen = may_listen
        self._is_active = False
        self._configured: dict[str, Target] = {}
        self._is_stale = False
        self._emit = emit
        self._policy = policy
        self._beat = beat
        self._metrics = metrics or NotificationMetrics()
        self._reconnect = reconnect
        self._poll_s = poll_s
        self._listeners: dict[str, tuple[_ListenTarget, anyio.CancelScope]] = {}
        self._unreadable = FailureLog("intents_unreadable")
        self._is_full = False

    async def run(self) -> None:
        """Update the listeners from the intents until cancelled."""
        limits = ConnectionLimits(anyio.CapacityLimiter(self._policy.max_connections))
        async with anyio.create_task_group() as tasks:
            while True:
                await self._update_listeners(tasks, limits)
                await anyio.sleep(self._poll_s)

    async def _update_listeners(self, tasks: TaskGroup, limits: ConnectionLimits) -> None:
        try:
            await anyio.to_thread.run_sync(self._refresh, abandon_on_cancel=True)
        except Exception as error:  # noqa: BLE001  # the next poll may succeed; connections stay open until then
            self._unreadable.log(error)
            return
        if self._is_stale:
            self._apply(self._wanted(), tasks, limits)
            self._is_stale = False
        self._beat()

    def _refresh(self) -> None:
        """Renew the right to listen, and read the operator's file and the changed intents."""
        is_active, configured = self._may_listen(), dict(self._policy.configured())
        self._is_stale |= (is_active, configured) != (self._is_active, self._configured)
        self._is_active, self._configured = is_active, configured
        self._is_stale |= self._servers.refresh()

    def _apply(self, wanted: dict[str, _ListenTarget], tasks: TaskGroup, limits: ConnectionLimits) -> None:
        """Stop and start listeners so that they match `wanted`."""
        for server_id, (listen_target, scope) in list(self._listeners.items()):
            if wanted.get(server_id) != listen_target:
                scope.cancel()
                del self._listeners[server_id]
        for server_id in wanted.keys() - self._listeners.keys():
            self._start_listener(server_id, wanted[server_id], tasks, limits)
        self._metrics.set_wanted(len(wanted))
        self._warn_when_full(len(wanted))

    def _start_listener(
        self, server_id: str, listen_target: _ListenTarget, tasks: TaskGroup, limits: ConnectionLimits
    ) -> None:
        scope = anyio.CancelScope()
        self._listeners[server_id] = (listen_target, scope)
        dependencies = ListenerDependencies(
            target=partial(self._policy.dialler.target, server_id, listen_target.endpoint),
            request_reconcile=partial(self._request_reconcile, server_id),
        )
        listener = Listener(server_id, dependencies, limits, self._reconnect, self._metrics)
        tasks.start_soon(self._run_listener, listener, server_id, scope)

    async def _run_listener(self, listener: Listener, server_id: str, scope: anyio.CancelScope) -> None:
        with scope:
            while True:
                try:
                    await listener.run()
                except Exception as error:  # noqa: BLE001  # a failed listener must not end the others
                    _log.error("listener_failed", server=server_id, exc_info=error)
                await anyio.sleep(self._reconnect.unsupported_s)

    def _wanted(self) -> dict[str, _ListenTarget]:
        """Return the address of each server that needs a listener."""
        if not self._is_active:
            return {}
        wanted = {
            server_id: _ListenTarget(server.endpoint, self._configured.get(server_id))
            for server_id, server in self._servers.items()
            # a server without a successful listing gets no new connection; an open connection stays
            if server.is_listed or server_id in self._listeners
        }
        return {
            server_id: listen_target
            for server_id, listen_target in wanted.items()
            if self._is_subscribed(listen_target)
        }

    def _is_subscribed(self, listen_target: _ListenTarget) -> bool:
        return self._policy.listen == "all" or (self._policy.listen == "http" and not listen_target.is_stdio)

    async def _request_reconcile(self, server_id: str) -> bool:
        return await anyio.to_thread.run_sync(self._record_change, server_id, abandon_on_cancel=True)

    def _record_change(self, server_id: str) -> bool:
        """Return whether the change is handled, so that the listener need not repeat the request."""
        try:
            intent = self._intents.intent(server_id)
            # an event would retry a server that kills workers too early; the sweep retries it later anyway
            if intent is not None and not kills_workers(intent):
                self._emit(ServerChanged(source=self._source, data=ServerRef(server_id=server_id)))
        except (EventInvalid, ValidationError):
            return True  # the server has no valid intent any more
        except IntentsUnavailable as error:
            self._unreadable.log(error)
            return False
        return True

    def _warn_when_full(self, wanted: int) -> None:
        is_full = wanted > self._policy.max_connections
        if is_full and not self._is_full:
            _log.warning("subscription_limit_reached", servers=wanted, most=self._policy.max_connections)
        self._is_full = is_full
