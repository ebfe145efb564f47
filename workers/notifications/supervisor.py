"""Keeps a listener for every server that should run according to the intents, in a thread of the process."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, ItemsView, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import anyio
import structlog
from anyio.abc import TaskGroup
from anyio.from_thread import start_blocking_portal
from pydantic import ValidationError

from shared.catalog import Endpoint
from shared.errors import EventInvalid, IntentsUnavailable, LeaseHeld
from shared.events import ServerChanged, ServerRef
from shared.intents.intent import Intent
from shared.intents.intents import Intents
from shared.service.logging import FailureLog
from shared.service.process import caller_connections, full_environment, raise_open_files
from shared.settings import Settings, Subscribe
from shared.upstream.dial import Dialler, dialler_for
from shared.upstream.mcp_json import ConfigFile
from shared.upstream.target import StdioTarget, Target
from workers.notifications.listener import DEFAULT_RECONNECT, WANTED, ConnectionLimits, Listener, ReconnectPolicy
from workers.sources.announcer import Emit

if TYPE_CHECKING:
    from shared.intents.storage import Lease

SOURCE = "toolscale/notifications"
# No server has an id with a space.
LEASE = "the notifications"
POLL_S = 2.0
# Finds the changes by a process of an earlier release, which stores no change.
REREAD_S = 300.0

# The servers of the largest fleet in docs/scaling.md; the resync finds changes of the other servers.
MAX_CONNECTIONS = 10_000
# A stdio server has three pipes; an HTTP server has a stream, and a connection for requests.
FILES_PER_CONNECTION = 3
# Redis, the broker, logs, and connections that are being opened.
OTHER_FILES = 200

_log = structlog.get_logger()


@contextmanager
def listeners_running(
    settings: Settings,
    intents: Intents,
    emit: Emit,
    *,
    may_listen: Callable[[], bool] = lambda: True,
    beat: Callable[[], None] = lambda: None,
) -> Generator[None]:
    """Listen to the servers that the settings select, and close all connections when the block ends.

    For `may_listen` and `beat` see `ListenerSupervisor`.
    """
    file = ConfigFile(settings.mcp_config, full_environment()) if settings.mcp_config else None
    supervisor = ListenerSupervisor(
        *(intents, emit, dialler_for(settings, full_environment(), file)),
        configured=file.targets if file else dict,
        listen=settings.subscribe,
        most=connection_limit(),
        may_listen=may_listen,
        beat=beat,
    )
    with start_blocking_portal(name="toolscale notifications") as portal:
        running = portal.start_task_soon(supervisor.run)
        try:
            yield
        finally:
            running.cancel()


def connection_limit() -> int:
    """Raise the limit of open files, and return the number of connections that it allows."""
    free = raise_open_files() - OTHER_FILES - caller_connections()
    return max(1, min(MAX_CONNECTIONS, free // FILES_PER_CONNECTION))


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A running server that does not kill its workers; `is_listed`: its last reconciliation was successful."""

    endpoint: Endpoint
    labels: Mapping[str, str]
    is_listed: bool


class RunningServers:
    """The running servers by id, as of the last `refresh`."""

    def __init__(self, intents: Intents, reread_s: float = REREAD_S) -> None:
        self._intents = intents
        self._reread_s = reread_s
        self._reread_at = 0.0
        self._position = ""
        self._servers: dict[str, RunningServer] = {}

    def items(self) -> ItemsView[str, RunningServer]:
        """Return all ids and servers."""
        return self._servers.items()

    def refresh(self) -> bool:
        """Read the changed intents, and all every `reread_s` seconds; return whether a running server changed.

        Raises:
            IntentsUnavailable: the store does not answer; the next call reads the same changes.
        """
        now = time.monotonic()
        changes = self._intents.changes(self._position if now < self._reread_at else "")
        found = {server_id: _running(intent) for server_id, intent in changes.intents.items()}
        if changes.is_complete:
            self._reread_at = now + self._reread_s
            found = dict.fromkeys(self._servers) | found
        self._position = changes.position
        is_changed = False
        for server_id, server in found.items():
            is_changed |= self._servers.pop(server_id, None) != server
            if server:
                self._servers[server_id] = server
        return is_changed


def _running(intent: Intent | None) -> RunningServer | None:
    if intent is None or intent.status != "running" or _kills_workers(intent):
        return None
    return RunningServer(
        intent.announcement.endpoint, intent.announcement.labels, intent.committed > 0 and not intent.failures
    )


def _kills_workers(intent: Intent) -> bool:
    return intent.parked or intent.is_suspect


@dataclass(frozen=True, slots=True)
class _ListenTarget:
    """A server's address; a different endpoint, command or header needs a new connection."""

    endpoint: Endpoint
    labels: Mapping[str, str]
    configured: Target | None

    @property
    def is_stdio(self) -> bool:
        """Return whether the connection needs a child process."""
        return isinstance(self.configured, StdioTarget) or self.endpoint.transport == "stdio"


class ListenerSupervisor:
    """Keeps a listener for each server that runs, was listed, and does not kill its workers.

    `listen` selects the servers, and `most` limits the connections. `configured` returns the operator's targets.
    Each poll calls `may_listen`, whose False closes all connections, and after success `beat`.
    A failed server affects only its own listener.

    While two processes change places, both may listen to a server, or none. Each new connection requests a
    reconciliation, so no change is lost.
    """

    def __init__(
        self,
        intents: Intents,
        emit: Emit,
        dialler: Dialler,
        *,
        configured: Callable[[], Mapping[str, Target]],
        listen: Subscribe,
        most: int,
        may_listen: Callable[[], bool] = lambda: True,
        beat: Callable[[], None] = lambda: None,
        reconnect: ReconnectPolicy = DEFAULT_RECONNECT,
        poll_s: float = POLL_S,
    ) -> None:
        self._intents = intents
        self._servers = RunningServers(intents)
        self._emit = emit
        self._dialler = dialler
        self._read_configured = configured
        self._configured: Mapping[str, Target] = {}
        self._listen = listen
        self._most = most
        self._limits = ConnectionLimits(anyio.CapacityLimiter(most))
        self._may_listen = may_listen
        self._is_active = False
        self._beat = beat
        self._reconnect = reconnect
        self._poll_s = poll_s
        self._is_stale = False
        self._is_full = False
        self._listeners: dict[str, tuple[_ListenTarget, anyio.CancelScope]] = {}
        self._unreadable = FailureLog("intents_unreadable")

    async def run(self) -> None:
        """Update the listeners from the intents until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                try:
                    await anyio.to_thread.run_sync(self._refresh, abandon_on_cancel=True)
                except Exception as error:  # noqa: BLE001  # the next poll may succeed; connections stay open until then
                    self._unreadable.log(error)
                else:
                    self._update_listeners(tasks)
                    self._beat()
                await anyio.sleep(self._poll_s)

    def _refresh(self) -> None:
        """Renew the right to listen, and read the operator's file and the changed intents."""
        is_active, configured = self._may_listen(), dict(self._read_configured())
        self._is_stale |= (is_active, configured) != (self._is_active, self._configured)
        self._is_active, self._configured = is_active, configured
        self._is_stale |= self._servers.refresh()

    def _update_listeners(self, tasks: TaskGroup) -> None:
        """Stop and start listeners so that they match the wanted ones."""
        if not self._is_stale:
            return
        self._is_stale = False
        wanted = self._wanted()
        for server_id, (listen_target, scope) in list(self._listeners.items()):
            if wanted.get(server_id) != listen_target:
                scope.cancel()
                del self._listeners[server_id]
        for server_id in wanted.keys() - self._listeners.keys():
            scope = anyio.CancelScope()
            self._listeners[server_id] = (wanted[server_id], scope)
            tasks.start_soon(self._run_listener, server_id, wanted[server_id], scope)
        WANTED.set(len(wanted))
        is_full = len(wanted) > self._most
        if is_full and not self._is_full:
            _log.warning("subscription_limit_reached", servers=len(wanted), most=self._most)
        self._is_full = is_full

    def _wanted(self) -> dict[str, _ListenTarget]:
        """Return the address of each server that needs a listener."""
        wanted: dict[str, _ListenTarget] = {}
        if not self._is_active or self._listen == "none":
            return wanted
        for server_id, server in self._servers.items():
            listen_target = _ListenTarget(server.endpoint, server.labels, self._configured.get(server_id))
            # a server without a successful listing gets no new connection; an open connection stays
            if not server.is_listed and server_id not in self._listeners:
                continue
            if self._listen == "all" or not listen_target.is_stdio:
                wanted[server_id] = listen_target
        return wanted

    async def _run_listener(self, server_id: str, listen_target: _ListenTarget, scope: anyio.CancelScope) -> None:
        listener = Listener(
            server_id,
            partial(self._dialler.listing_target, server_id, listen_target.endpoint, listen_target.labels),
            partial(self._record_change, server_id),
            self._limits,
            self._reconnect,
        )
        with scope:
            while True:
                try:
                    await listener.run()
                except Exception as error:  # noqa: BLE001  # a failed listener must not end the others
                    _log.error("listener_failed", server=server_id, exc_info=error)
                await anyio.sleep(self._reconnect.unsupported_s)

    def _record_change(self, server_id: str) -> bool:
        """Return whether the change is handled, so that the listener need not repeat the request."""
        try:
            intent = self._intents.intent(server_id)
            # an event would retry a server that kills workers too early; the sweep retries it later anyway
            if intent is not None and not _kills_workers(intent):
                self._emit(ServerChanged(source=SOURCE, data=ServerRef(server_id=server_id)))
        except (EventInvalid, ValidationError):
            return True  # the server has no valid intent any more
        except IntentsUnavailable as error:
            self._unreadable.log(error)
            return False
        return True


class ListeningLease(ExitStack):
    """The right of one process to listen, which `is_held` takes once it is free, and which ends with the block."""

    def __init__(self, intents: Intents) -> None:
        super().__init__()
        self._intents = intents
        self._lease: Lease | None = None
        self._was_held: bool | None = None

    def is_held(self) -> bool:
        """Return whether this process has the lease now; take it if it is free.

        Raises:
            IntentsUnavailable: the intents do not answer.
        """
        try:
            if self._lease:
                self._lease.assert_held()
        except LeaseHeld:  # it expired: the process was suspended, or Redis did not answer for longer
            self._lease = None
            self.close()
        with suppress(LeaseHeld):
            self._lease = self._lease or self.enter_context(self._intents.lease(LEASE))
        is_held = self._lease is not None
        if is_held != self._was_held:
            self._was_held = is_held
            _log.info("notifications_active" if is_held else "notifications_standby")
        return is_held
