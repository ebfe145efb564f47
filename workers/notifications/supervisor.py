"""Keeps a listener for every server that should run according to the intents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import anyio
import structlog
from anyio.abc import TaskGroup
from pydantic import ValidationError

from shared.catalog import Endpoint
from shared.errors import AddressForbidden, EventInvalid, IntentsUnavailable
from shared.events import ServerChanged, ServerRef
from shared.settings import Subscribe
from shared.upstream.dial import Dialler, OperatorServers, StdioTarget, Target
from workers.intents.store import Intent, IntentStore
from workers.notifications.listener import (
    DEFAULT_RECONNECT,
    ConnectionLimits,
    Listener,
    ListenerDependencies,
    ReconnectPolicy,
)
from workers.notifications.metrics import NotificationMetrics
from workers.sources.announcer import Emit

POLL_S = 2.0
# Each connection takes a file descriptor and some memory; the resync finds changes of the other servers.
MAX_CONNECTIONS = 1_000

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

    configured: OperatorServers
    dialler: Dialler
    listen: Subscribe
    max_connections: int = MAX_CONNECTIONS


class ListenerSupervisor:
    """Keeps a listener for each server that runs, was listed, and does not kill its workers.

    A failed server affects only its own listener. The supervisor calls `beat` after each read of the intents.
    """

    def __init__(
        self,
        source: str,
        intents: IntentStore,
        emit: Emit,
        policy: SubscriptionPolicy,
        *,
        beat: Callable[[], None] = lambda: None,
        metrics: NotificationMetrics | None = None,
        reconnect: ReconnectPolicy = DEFAULT_RECONNECT,
        poll_s: float = POLL_S,
    ) -> None:
        self._source = source
        self._intents = intents
        self._emit = emit
        self._policy = policy
        self._beat = beat
        self._metrics = metrics or NotificationMetrics()
        self._reconnect = reconnect
        self._poll_s = poll_s
        self._listeners: dict[str, tuple[_ListenTarget, anyio.CancelScope]] = {}
        self._reported = ""
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
            wanted = await anyio.to_thread.run_sync(self._wanted, abandon_on_cancel=True)
        except (IntentsUnavailable, ValidationError) as error:  # ValidationError: an invalid stored intent
            self._report(str(error))
            return
        self._reported = ""
        for server_id, (listen_target, scope) in list(self._listeners.items()):
            if wanted.get(server_id) != listen_target:
                scope.cancel()
                del self._listeners[server_id]
        for server_id in wanted.keys() - self._listeners.keys():
            self._start_listener(server_id, wanted[server_id], tasks, limits)
        self._metrics.set_wanted(len(wanted))
        self._warn_when_full(len(wanted))
        self._beat()

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
        running = [intent for intent in self._intents.intents() if self._is_wanted(intent)]
        wanted = {
            intent.server_id: _ListenTarget(intent.announcement.endpoint, self._configured(intent.server_id))
            for intent in running
        }
        return {
            server_id: listen_target
            for server_id, listen_target in wanted.items()
            if self._is_subscribed(listen_target)
        }

    def _configured(self, server_id: str) -> Target | None:
        try:
            return self._policy.configured.get(server_id)
        except AddressForbidden:
            return None  # the connection fails with it, and affects no other server

    def _is_wanted(self, intent: Intent) -> bool:
        if intent.status != "running" or _kills_workers(intent):
            return False
        # a server without a successful listing gets no new connection; an open connection stays
        return intent.server_id in self._listeners or (intent.committed > 0 and not intent.failures)

    def _is_subscribed(self, listen_target: _ListenTarget) -> bool:
        return self._policy.listen == "all" or (self._policy.listen == "http" and not listen_target.is_stdio)

    async def _request_reconcile(self, server_id: str) -> bool:
        return await anyio.to_thread.run_sync(self._record_change, server_id, abandon_on_cancel=True)

    def _record_change(self, server_id: str) -> bool:
        """Return whether the change is handled, so that the listener need not repeat the request."""
        try:
            intent = self._intents.intent(server_id)
            # an event would retry a server that kills workers too early; the sweep retries it later anyway
            if intent is not None and not _kills_workers(intent):
                self._emit(ServerChanged(source=self._source, data=ServerRef(server_id=server_id)))
        except (EventInvalid, ValidationError):
            return True  # the server has no valid intent any more
        except IntentsUnavailable as error:
            self._report(str(error))
            return False
        return True

    def _warn_when_full(self, wanted: int) -> None:
        is_full = wanted > self._policy.max_connections
        if is_full and not self._is_full:
            _log.warning("subscription_limit_reached", servers=wanted, most=self._policy.max_connections)
        self._is_full = is_full

    def _report(self, reason: str) -> None:
        if reason != self._reported:
            _log.warning("intents_unreadable", reason=reason)
            self._reported = reason


def _kills_workers(intent: Intent) -> bool:
    return intent.parked or intent.is_suspect
