"""The connections to servers, opened by the first call and kept while they are used.

Callers share the connection to a server that keeps nothing for them: one of the revision 2026-07-28, one over HTTP
that assigns no session, or a child process. Each call brings the tokens of its caller. Each caller has a session of
its own with a server that assigns one, that is declared stateful, or that gets headers of the caller's request. A
child that works in the project of its client belongs to the clients of that directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import anyio
import anyio.to_thread
import structlog
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from query.calling.changed_servers import ChangedServers
from query.calling.connection import CallDeadline, Connection, NothingSent, ResultT, Send, SessionHooks
from query.calling.kept_sessions import KeptSessions
from query.calling.limits import Admission, CallLimits, ResultSlot
from query.calling.session_bounds import SessionBounds, SessionKey
from query.calling.session_tools import ListedTools, SessionTools
from query.kept import Kept
from shared.catalog import Endpoint, ServerRecord
from shared.errors import (
    CallsExhausted,
    Delivery,
    ServerError,
    ServerFailed,
    ServerTimeout,
    ServerUnreachable,
    SessionNotShared,
    SignInsUnavailable,
    ToolscaleError,
)
from shared.text.invisible import mark_text
from shared.upstream.auth import LISTING, SERVICE, Requester
from shared.upstream.target import HttpTarget, StdioTarget, Target

if TYPE_CHECKING:
    from query.calling.dialogue import Dialogue
    from shared.catalog import ToolDefinition

# A server may work for some seconds without a message.
LONG_SILENCE_S = 10.0
# Lookups have threads of their own, since a name server may be slow.
LOOKUP_THREADS = 16
NOT_SHARED = (
    "its entry declares it stateful, and it runs as a process, which no other replica of this service can use; "
    "serve it over HTTP, or remove the label"
)

Dial = Callable[[str, Endpoint], Target]
"""Resolves a server's id and endpoint to an allowed target; blocks, and raises a ServerError."""

Authenticate = Callable[[Target, str, Mapping[str, str], Requester], Target]
"""Returns the target of a server with these labels as the requester may use it."""

ReportProgress = Callable[[float, float | None, str | None], Awaitable[None]]
"""Receives progress, the total if it is known, and a message."""

T = TypeVar("T")

_log = structlog.get_logger()


class Progress:
    """Reports progress to the caller; a slow caller gets only the latest."""

    def __init__(self, report: ReportProgress) -> None:
        self._report = report
        self._latest: tuple[float, float | None, str | None] | None = None
        self._reported: anyio.Event | None = None

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """Report this, unless newer progress arrives before the caller is ready."""
        self._latest = (progress, total, mark_text(message) if message else message)
        if self._reported is not None:
            return
        self._reported = anyio.Event()
        try:
            while self._latest is not None:
                latest, self._latest = self._latest, None
                await self._report(*latest)
        finally:
            self._reported.set()
            self._reported = None

    def report_to(self, report: ReportProgress) -> None:
        """Report here from now on: another request of the caller continues the call."""
        self._report = report

    async def drain(self) -> None:
        """Return when all progress is reported: none may follow the result."""
        if self._reported is not None:
            await self._reported.wait()


def _ignore(_: ServerError) -> None: ...


@dataclass(frozen=True, slots=True)
class CallResources:
    """The caller's side of a call: where progress goes, the slot for a large result, and for whom it is made.

    `on_failover` is called with the error of each replica that another replaces.
    `dialogue` asks the caller's client what a server asks in mid-call; without one, no client is asked.
    `is_repeatable`: the tool declares that it changes nothing, or that a repetition changes nothing more.
    """

    progress: Progress
    slot: ResultSlot
    requester: Requester = LISTING
    on_failover: Callable[[ServerError], None] = _ignore
    dialogue: Dialogue | None = None
    is_repeatable: bool = False

    @property
    def session(self) -> str:
        """Return the owner of the sessions that the call may use: its caller, or one of the clients of that."""
        return self.requester.session or self.slot.owner


class Sessions:
    """The connections to servers, in one event loop: one for each server, or for each of its callers.

    `on_tools_changed` is called, in a thread, with a server that announces in a session that its tools have changed.
    With `has_replicas`, this process is one of several, of which none can continue what the child of another keeps.
    """

    def __init__(
        self,
        resolve_target: Dial,
        authenticate: Authenticate,
        limits: CallLimits,
        admission: Admission,
        kept: Kept,
        *,
        on_tools_changed: Callable[[str], None] = lambda _: None,
        has_replicas: bool = False,
    ) -> None:
        self._resolve_target, self._authenticate = resolve_target, authenticate
        self._limits = limits
        self._admission = admission
        self.kept = KeptSessions(kept, self.start)
        self._changed = ChangedServers(on_tools_changed, self.start)
        self._has_replicas = has_replicas
        self._connections: dict[SessionKey, Connection] = {}
        # By server, whether it assigns sessions over HTTP, as its last handshake showed.
        self._assigns: dict[str, bool] = {}
        # The stdio servers that have asked for the directories of their clients.
        self._by_project: set[str] = set()
        self._bounds = SessionBounds(limits)
        self._listed_tools = ListedTools()
        self._not_ended: dict[Connection, asyncio.Task[None]] = {}
        self._lookups: dict[tuple[str, Endpoint], asyncio.Task[Target]] = {}
        self._lookup_threads = anyio.CapacityLimiter(LOOKUP_THREADS)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def call(
        self, server: ServerRecord, send: Send[ResultT], resources: CallResources, deadline: CallDeadline
    ) -> ResultT:
        """Send a request to a server and return its result. The `delivery` of a ServerError is that of this request.

        Raises:
            ServerTimeout: no answer in time; the server was sent a cancellation.
            CallsExhausted: too many connections in use, or too many large results in memory.
            AddressForbidden: the endpoint may not be connected to.
            ServerError: no connection, it broke, or the server returned an error or an invalid result.
        """
        began = anyio.current_time()
        target: Target | None = None
        with deadline.scope:
            target = await self._resolve(server, resources.requester)
            result = await self._call(server, send, target, resources, deadline)
            await resources.progress.drain()
            return result
        if not deadline.is_connected:
            reason = _not_connected(target, deadline.connect_by - began, self._limits.start_timeout_s)
            raise ServerTimeout(server.server_id, reason).with_delivery(Delivery.NOT_SENT)
        raise self._out_of_time(server.server_id, began, deadline, resources)

    async def open(self, server: ServerRecord) -> None:
        """Return once the connection to a server is open, without a call.

        Raises:
            CallsExhausted: all connections are in use.
            ServerError: it cannot be opened.
        """
        with anyio.move_on_after(self._limits.timeout_s):
            connection = await self._connection(server, await self._resolve(server, LISTING), LISTING)
            await connection.opened()
            return
        raise ServerTimeout(server.server_id, f"no connection within {self._limits.timeout_s:g} s")

    @asynccontextmanager
    async def listed(self, server: ServerRecord) -> AsyncGenerator[Connection]:
        """Yield a connection of anyone to a stdio server, or else the service's, which may not be open yet.

        Raises:
            CallsExhausted: all connections are in use.
            ServerError: it cannot be opened.
        """
        target = await self._resolve(server, LISTING)
        # not one whose tools a caller with a token has changed: they are of his session alone
        running = [
            each
            for key, each in self._connections.items()
            if key.server_id == server.server_id and not (key.is_private and each.tools.have_changed)
        ]
        connection = next((each for each in running if each.accepts_calls and each.runs(target)), None)
        connection = connection or await self._connection(server, target, LISTING)
        with connection.listing():
            yield connection

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin work that outlives the request of its caller, and that `aclose` ends."""
        # an empty context: the log and the trace of the request that came first are not those of a connection
        task = asyncio.create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def aclose(self) -> None:
        """End all calls, connections and child processes."""
        for connection, task in self._not_ended.items():
            connection.abort()
            self._tasks.discard(task)
        for task in self._tasks:
            task.cancel()
        if ending := [*self._not_ended.values(), *self._tasks]:
            await asyncio.wait(ending)

    @property
    def has_connections(self) -> bool:
        """Return whether a connection is open, opens or ends."""
        return bool(self._not_ended)

    def has_connection(self, server_id: str, requester: Requester) -> bool:
        """Return whether a connection of the requester to the server accepts calls."""
        connection = self._of(server_id, requester)
        return connection is not None and connection.accepts_calls

    def note_cancellation(self, server_id: str, began: float, slot: ResultSlot, requester: Requester) -> bool:
        """Return whether the server sent nothing since a call began that its caller cancelled.

        The connection is retired after a long silence only: it may have the state of other callers.
        """
        used = self._of(server_id, requester)
        if self._waits_for_slot(used, slot) or (used and not used.is_silent_since(began)):
            return False
        if used and anyio.current_time() - began >= LONG_SILENCE_S:
            used.retire_if_silent_since(began)
        return True

    def may_assign(self, server: ServerRecord) -> bool:
        """Return whether the server may assign sessions; newer revisions have none."""
        is_older = server.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS
        return is_older and self._assigns.get(server.server_id, True)

    def may_have_state(self, server_id: str, requester: Requester) -> bool:
        """Return whether the server may keep state for the requester's connection to it."""
        connection = self._of(server_id, requester)
        return connection is not None and connection.may_have_state

    async def tool_named(self, name: str, server: ServerRecord, requester: Requester) -> ToolDefinition | None:
        """Return the tool that a server has in the session that a call of the requester would use; None without either.

        Raises:
            ServerError: there is no allowed target, or the session's tools cannot be listed.
        """
        session = self._of(server.server_id, requester)
        if session is None or not session.accepts_calls or not session.tools.have_changed:
            return None
        target = await self._resolve(server, requester)
        key = self._key(server.server_id, target, requester)
        return await session.tool_named(name) if session.is_for(_target_of(key, target)) else None

    def _of(self, server_id: str, requester: Requester) -> Connection | None:
        """Return the requester's own connection to a server, or the one that requesters share."""
        for owner in filter(None, (requester.session, requester.project)):
            if own := self._connections.get(SessionKey(server_id, owner)):
                return own
        is_own = (self._assigns.get(server_id) and requester.session) or (
            server_id in self._by_project and requester.project
        )
        return None if is_own else self._connections.get(SessionKey(server_id, SERVICE))

    def _key(self, server_id: str, target: Target, requester: Requester) -> SessionKey:
        """Return the key of the connection that the requester uses, as far as the server is known."""
        owner = target.owner
        if isinstance(target, HttpTarget) and (target.transport == "sse" or self._assigns.get(server_id)):
            owner = owner or requester.session
        elif isinstance(target, HttpTarget) and target.is_shareable:
            owner = SERVICE  # as far as is known, the server keeps nothing
        elif isinstance(target, StdioTarget) and server_id in self._by_project:
            owner = owner or requester.project
        return SessionKey(server_id, owner)

    async def _resolve(self, server: ServerRecord, requester: Requester) -> Target:
        """Return the target for a requester; calls of one server share a lookup, which outlives their cancellation."""
        key = server.server_id, server.endpoint

        def looked_up(done: asyncio.Task[Target]) -> None:
            del self._lookups[key]
            if not done.cancelled():
                done.exception()  # else asyncio logs the error of a lookup whose calls were cancelled

        lookup = self._lookups.get(key)
        if lookup is None:
            look_up = partial(self._resolve_target, *key)
            lookup = self._lookups[key] = self.start(
                anyio.to_thread.run_sync(look_up, limiter=self._lookup_threads, abandon_on_cancel=True)
            )
            lookup.add_done_callback(looked_up)
        try:
            target = await asyncio.shield(lookup)
            target = self._authenticate(target, server.server_id, server.labels, requester)
            if isinstance(target, HttpTarget) and target.tokens:
                # a session began with a sign-in, and must not outlive it
                target = replace(target, identity=await target.tokens.identity())
            if self._has_replicas and isinstance(target, StdioTarget) and target.owner:
                raise SessionNotShared(server.server_id, NOT_SHARED)
            return target
        except ServerError as error:
            raise error.with_delivery(Delivery.NOT_SENT) from error
        except SignInsUnavailable as error:
            raise ServerFailed(server.server_id, str(error)).with_delivery(Delivery.NOT_SENT) from error

    async def _call(
        self,
        server: ServerRecord,
        send: Send[ResultT],
        target: Target,
        resources: CallResources,
        deadline: CallDeadline,
    ) -> ResultT:
        for _ in range(2):
            deadline.connecting()
            connection = await self._connection(server, target, resources.requester)
            try:
                return await connection.call(send, target, resources, deadline)
            except NothingSent:
                connection.retire()
        broke = ServerUnreachable(server.server_id, "the connection broke twice before the call was sent")
        raise broke.with_delivery(Delivery.NOT_SENT)

    async def _connection(self, server: ServerRecord, target: Target, requester: Requester) -> Connection:
        """Return the requester's connection to the server; where the handshake decides whose it is, after that.

        Raises:
            CallsExhausted: no further session or connection may be opened.
        """
        while True:
            key = self._key(server.server_id, target, requester)
            if isinstance(target, StdioTarget) and await self._has_made_way(key, target, requester):
                continue
            connection = self._connections.get(key)
            is_opener = False
            if connection is None or not connection.accepts_calls or not connection.is_for(_target_of(key, target)):
                if connection is not None:
                    connection.suspend()
                if len(self._not_ended) >= self._limits.max_connections:
                    await self._make_room()
                    continue
                connection, is_opener = self._open(server, target, key, requester), True
            is_certain = bool(key.owner) or not _may_assign(target)
            if is_certain or connection.is_settled:
                return connection
            await connection.settled()
            # its server may have assigned a session, which belongs to the requester who opened it, or refused that one
            is_ours = not connection.was_opened or self._of(server.server_id, requester) is connection
            if is_opener or (is_ours and not connection.lacks_credentials):
                return connection

    async def _has_made_way(self, key: SessionKey, target: StdioTarget, requester: Requester) -> bool:
        """Return whether a process that only one may run beside has ended, or has been given to the requester."""
        connection = self._connections.get(key)
        listed = self._connections.get(SessionKey(key.server_id, SERVICE))
        if listed and not listed.was_called and requester is not LISTING:
            # one that asks for its client's directories asked while there was no client
            is_own = key.server_id not in self._by_project and listed.is_for(replace(target, owner=SERVICE))
            if is_own and key.owner and listed.accepts_calls:
                self._bounds.admit(key, self._connections, is_process=key.is_of_caller)
                del self._connections[SessionKey(key.server_id, SERVICE)]
                self._connections[key] = listed
                listed.give_to(target)
            if is_own and listed.accepts_calls:
                return False
            connection = listed
            connection.suspend()
        elif connection and connection.accepts_calls and not connection.is_for(target):
            connection.suspend()
        connection = connection or await self._without_entry(key, target)
        if connection is None or connection.accepts_calls or (connection.in_flight and connection.was_called):
            return False
        if ending := self._not_ended.get(connection):
            await asyncio.wait([ending])
        return True

    async def _without_entry(self, key: SessionKey, target: StdioTarget) -> Connection | None:
        """Return an unused process of the same command that is to end, since its entry has another name now."""
        for (server_id, _), other in list(self._connections.items()):
            if server_id != key.server_id and other.runs(target) and not other.in_flight:
                try:
                    await anyio.to_thread.run_sync(self._resolve_target, server_id, Endpoint(transport="stdio"))
                except ServerError:
                    other.suspend()
                    return other
        return None

    def _open(self, server: ServerRecord, target: Target, key: SessionKey, requester: Requester) -> Connection:
        if key.owner:
            self._bounds.admit(key, self._connections, is_process=isinstance(target, StdioTarget) and key.is_of_caller)
        owner = key.owner or target.owner or requester.session
        hooks = SessionHooks(
            kept=self.kept.of(key.server_id, owner, target) if owner and _may_assign(target) else None,
            opened=partial(self._opened, key, target, owner) if _may_assign(target) else lambda _: None,
            asks_for_roots=partial(self._asks_for_roots, key, requester),
            tools_changed=partial(self._changed.add, key.server_id),
        )
        slot = self._admission.slot(f"server {key.server_id}")
        tools = SessionTools(self._listed_tools)
        connection = Connection(
            key.server_id, _target_of(key, target), self._limits, slot, server.protocol_version, hooks, tools
        )
        self._connections[key] = connection
        self._not_ended[connection] = self.start(self._keep(key, connection))
        return connection

    def _opened(self, key: SessionKey, target: Target, owner: str, connection: Connection) -> None:
        """Give a session that the server has assigned to the owner for whom it was opened."""
        self._assigns[key.server_id] = connection.has_session_id
        if connection.has_session_id:
            connection.give_to(target)
            self._give(connection, key, owner)

    def _asks_for_roots(self, key: SessionKey, requester: Requester, connection: Connection) -> None:
        """Give a process that works in the directories of its client to the clients of the same one."""
        self._by_project.add(key.server_id)
        self._give(connection, key, requester.project)

    def _give(self, connection: Connection, key: SessionKey, owner: str) -> None:
        """Let a connection that callers share belong to an owner."""
        if not key.owner and owner and self._connections.get(key) is connection:
            del self._connections[key]
            own = SessionKey(key.server_id, owner)
            self._connections[own] = connection
            self._bounds.used(own)

    async def _keep(self, key: SessionKey, connection: Connection) -> None:
        try:
            await connection.run()
        except Exception:  # noqa: BLE001  # its calls have an error, and nobody awaits this task
            _log.exception("connection_failed", server=key.server_id)
        finally:
            del self._not_ended[connection]
            for own in [own for own, other in self._connections.items() if other is connection]:
                del self._connections[own]
                if not connection.can_be_continued:
                    self._bounds.ended(own)

    async def _make_room(self) -> None:
        """Wait until a connection has ended; close the least recently used one that keeps nothing, if none is ending.

        Raises:
            CallsExhausted: all connections are in use, or keep the state of callers.
        """
        own = {connection for key, connection in self._connections.items() if key.is_of_caller}
        unused = [
            connection
            for connection in self._not_ended
            if connection.in_flight == 0
            and (connection not in own or connection.can_be_continued or not connection.may_have_state)
        ]
        if not unused:
            held = f"all {self._limits.max_connections} connections to servers are in use"
            raise CallsExhausted(f"{held}; call again in a few seconds")
        if all(connection.accepts_calls for connection in unused):
            min(unused, key=lambda connection: connection.last_used).suspend()
        await asyncio.wait(self._not_ended.values(), return_when=asyncio.FIRST_COMPLETED)

    def _out_of_time(
        self, server_id: str, began: float, deadline: CallDeadline, resources: CallResources
    ) -> ToolscaleError:
        used, slot = self._of(server_id, resources.requester), resources.slot
        if self._waits_for_slot(used, slot):
            return self._admission.no_slot()
        if used:
            used.retire_if_silent_since(began)
        written = f"; it {used.violation}" if used and used.violation else ""
        return ServerTimeout(server_id, f"{deadline.reason}{written}")

    @staticmethod
    def _waits_for_slot(used: Connection | None, slot: ResultSlot) -> bool:
        return slot.is_waiting or (used is not None and used.waits_for_slot)


def _may_assign(target: Target) -> TypeGuard[HttpTarget]:
    """Return whether the server may assign sessions by an id."""
    return isinstance(target, HttpTarget) and target.transport == "streamable-http"


def _target_of(key: SessionKey, target: Target) -> Target:
    """Return the target of the connection with this key: that of its owner, or the one that callers share."""
    return target.shared if isinstance(target, HttpTarget) and not key.owner else target


def _not_connected(target: Target | None, waited_s: float, start_timeout_s: float) -> str:
    limit = f"within {waited_s:.3g} s"
    if target is None:
        return f"its host name was not looked up {limit}"
    if isinstance(target, StdioTarget) and waited_s < start_timeout_s:
        # a second child would install the same packages at the same time
        return f"not started {limit}; the start continues, so call again later"
    return f"no connection {limit}"
