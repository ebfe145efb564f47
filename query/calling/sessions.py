"""One connection per server, opened by the first call and kept while it is used."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import anyio
import anyio.to_thread
import structlog

from query.calling.connection import CallDeadline, Connection, NothingSent, ResultT, Send
from query.calling.limits import Admission, CallLimits, ResultSlot
from shared.catalog import Endpoint, ServerRecord
from shared.errors import CallsExhausted, Delivery, ServerError, ServerTimeout, ServerUnreachable, ToolscaleError
from shared.text.invisible import mark_text
from shared.upstream.auth import LISTING, SERVICE, Requester
from shared.upstream.target import HttpTarget, StdioTarget, Target

if TYPE_CHECKING:
    from query.calling.dialogue import Dialogue

# A server may work for some seconds without a message.
LONG_SILENCE_S = 10.0
# Lookups have threads of their own, since a name server may be slow.
LOOKUP_THREADS = 16

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
    """

    progress: Progress
    slot: ResultSlot
    requester: Requester = LISTING
    on_failover: Callable[[ServerError], None] = _ignore
    dialogue: Dialogue | None = None

    @property
    def caller(self) -> str:
        """Return the caller whose call it is."""
        return self.slot.owner


class SessionKey(NamedTuple):
    """A server, and the caller to whom a connection to it belongs; SERVICE: callers share it."""

    server_id: str
    owner: str


class Sessions:
    """The connections to servers, in one event loop: one for each server and identity of its requesters."""

    def __init__(
        self, resolve_target: Dial, authenticate: Authenticate, limits: CallLimits, admission: Admission
    ) -> None:
        self._resolve_target, self._authenticate = resolve_target, authenticate
        self._limits = limits
        self._admission = admission
        self._connections: dict[SessionKey, Connection] = {}
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
        raise self._out_of_time(key_of(server.server_id, target), began, deadline, resources.slot)

    async def open(self, server: ServerRecord) -> None:
        """Return once the connection to a server is open, without a call.

        Raises:
            CallsExhausted: all connections are in use.
            ServerError: it cannot be opened.
        """
        with anyio.move_on_after(self._limits.timeout_s):
            connection = await self._connection(server, await self._resolve(server, LISTING))
            await connection.opened()
            return
        raise ServerTimeout(server.server_id, f"no connection within {self._limits.timeout_s:g} s")

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

    def may_have_state(self, server_id: str, requester: Requester) -> bool:
        """Return whether the server may keep state for the requester's connection to it."""
        connection = self._of(server_id, requester)
        return connection is not None and connection.may_have_state

    def _of(self, server_id: str, requester: Requester) -> Connection | None:
        """Return the requester's own connection to a server, or the one that requesters share."""
        own = self._connections.get(SessionKey(server_id, requester.caller))
        return own or self._connections.get(SessionKey(server_id, SERVICE))

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
            return self._authenticate(target, server.server_id, server.labels, requester)
        except ServerError as error:
            raise error.with_delivery(Delivery.NOT_SENT) from error

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
            connection = await self._connection(server, target)
            try:
                return await connection.call(send, resources, deadline)
            except NothingSent:
                connection.retire()
        broke = ServerUnreachable(server.server_id, "the connection broke twice before the call was sent")
        raise broke.with_delivery(Delivery.NOT_SENT)

    async def _connection(self, server: ServerRecord, target: Target) -> Connection:
        server_id, key = server.server_id, key_of(server.server_id, target)
        while True:
            connection = self._connections.get(key)
            if connection is not None and connection.accepts_calls and connection.is_for(target):
                return connection
            if connection is not None:
                connection.retire()
            if len(self._not_ended) < self._limits.max_connections:
                slot = self._admission.slot(f"server {server_id}")
                connection = Connection(server_id, target, self._limits, slot, server.protocol_version)
                self._connections[key] = connection
                self._not_ended[connection] = self.start(self._keep(key, connection))
                return connection
            await self._make_room()

    async def _keep(self, key: SessionKey, connection: Connection) -> None:
        try:
            await connection.run()
        except Exception:  # noqa: BLE001  # its calls have an error, and nobody awaits this task
            _log.exception("connection_failed", server=key.server_id)
        finally:
            del self._not_ended[connection]
            if self._connections.get(key) is connection:
                del self._connections[key]

    async def _make_room(self) -> None:
        """Wait until a connection has ended; retire the least recently used one if none is ending.

        Raises:
            CallsExhausted: all connections are in use.
        """
        unused = [connection for connection in self._not_ended if connection.in_flight == 0]
        if not unused:
            held = f"all {self._limits.max_connections} connections to servers are in use"
            raise CallsExhausted(f"{held}; call again in a few seconds")
        if all(connection.accepts_calls for connection in unused):
            min(unused, key=lambda connection: connection.last_used).retire()
        await asyncio.wait(self._not_ended.values(), return_when=asyncio.FIRST_COMPLETED)

    def _out_of_time(self, key: SessionKey, began: float, deadline: CallDeadline, slot: ResultSlot) -> ToolscaleError:
        used = self._connections.get(key)
        if self._waits_for_slot(used, slot):
            return self._admission.no_slot()
        if used:
            used.retire_if_silent_since(began)
        return ServerTimeout(key.server_id, deadline.reason)

    @staticmethod
    def _waits_for_slot(used: Connection | None, slot: ResultSlot) -> bool:
        return slot.is_waiting or (used is not None and used.waits_for_slot)


def key_of(server_id: str, target: Target | None) -> SessionKey:
    """Return the key of the connection that leads to a target."""
    return SessionKey(server_id, target.identity if isinstance(target, HttpTarget) else SERVICE)


def _not_connected(target: Target | None, waited_s: float, start_timeout_s: float) -> str:
    limit = f"within {waited_s:.3g} s"
    if target is None:
        return f"its host name was not looked up {limit}"
    if isinstance(target, StdioTarget) and waited_s < start_timeout_s:
        # a second child would install the same packages at the same time
        return f"not started {limit}; the start continues, so call again later"
    return f"no connection {limit}"
