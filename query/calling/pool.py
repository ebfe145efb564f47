"""One connection per server, opened by the first call and kept while it is used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import structlog
from anyio.abc import TaskGroup

from query.calling.connection import CallLimits, Connection, NothingSent
from query.calling.deadlines import CallDeadline
from query.calling.endpoints import TargetResolver
from query.calling.limits import Admission, ResultSlot
from query.calling.progress import ProgressRelay
from shared.errors import CallsExhausted, Delivery, ServerError, ServerTimeout, ServerUnreachable, ToolscaleError
from shared.upstream.target import StdioTarget

if TYPE_CHECKING:
    from query.calling.upstream_request import ResultT, UpstreamRequest
    from shared.catalog import Endpoint
    from shared.upstream.target import Target

# A server may work for some seconds without a message.
LONG_SILENCE_S = 10.0

_log = structlog.get_logger()


def _ignore(_: ServerError) -> None: ...


@dataclass(frozen=True, slots=True)
class CallResources:
    """The caller's side of a call: where progress goes, and the slot for a large result.

    `on_failover` is called in the event loop of the upstreams, with the error of each replica that another replaces.
    """

    progress: ProgressRelay
    slot: ResultSlot
    on_failover: Callable[[ServerError], None] = _ignore


class Pool:
    """The connections of one event loop. Not safe for other threads."""

    def __init__(self, tasks: TaskGroup, resolver: TargetResolver, limits: CallLimits, admission: Admission) -> None:
        self._tasks = tasks
        self._resolver = resolver
        self._limits = limits
        self._admission = admission
        self._connections: dict[str, Connection] = {}
        self._not_ended: set[Connection] = set()
        self._one_ended = anyio.Event()

    async def call(
        self, call: UpstreamRequest[ResultT], endpoint: Endpoint, resources: CallResources, deadline: CallDeadline
    ) -> ResultT:
        """Call a tool and return its server's result. The `delivery` of a ServerError is that of this call.

        Raises:
            ServerTimeout: no answer in time; the server was sent a cancellation.
            CallsExhausted: too many connections in use, or too many large results in memory.
            AddressForbidden: the endpoint may not be connected to.
            ServerError: no connection, it broke, or the server returned an error or an invalid result.
        """
        began = anyio.current_time()
        target: Target | None = None
        with deadline.scope:
            target = await self._resolve(call.server_id, endpoint)
            result = await self._call(call, target, resources, deadline)
            await resources.progress.drain()
            return result
        if not deadline.is_connected:
            reason = _not_connected(target, deadline.connect_by - began, self._limits.start_timeout_s)
            late = ServerTimeout(call.server_id, reason)
            raise late.with_delivery(Delivery.NOT_SENT)
        raise self._out_of_time(call.server_id, began, resources.slot)

    async def open(self, server_id: str, endpoint: Endpoint, protocol_version: str | None) -> None:
        """Return once the connection to a server is open, without a call.

        Raises:
            CallsExhausted: all connections are in use.
            ServerError: it cannot be opened.
        """
        with anyio.move_on_after(self._limits.timeout_s):
            target = await self._resolve(server_id, endpoint)
            connection = await self._connection(server_id, target, protocol_version)
            await connection.opened()
            return
        raise ServerTimeout(server_id, f"no connection within {self._limits.timeout_s:g} s")

    def has_connection(self, server_id: str) -> bool:
        """Return whether a connection to the server accepts calls."""
        connection = self._connections.get(server_id)
        return connection is not None and connection.accepts_calls

    def note_cancellation(self, server_id: str, began: float, slot: ResultSlot) -> bool:
        """Return whether the server sent nothing since a call began that its caller cancelled.

        The connection is retired after a long silence only: it may have the state of other callers.
        """
        used = self._connections.get(server_id)
        if self._waits_for_slot(used, slot) or (used and not used.is_silent_since(began)):
            return False
        if used and anyio.current_time() - began >= LONG_SILENCE_S:
            used.retire_if_silent_since(began)
        return True

    def may_have_state(self, server_id: str) -> bool:
        """Return whether the server may keep state for the connection to it."""
        connection = self._connections.get(server_id)
        return connection is not None and connection.may_have_state

    async def _resolve(self, server_id: str, endpoint: Endpoint) -> Target:
        try:
            return await self._resolver.resolve(server_id, endpoint)
        except ServerError as error:
            raise error.with_delivery(Delivery.NOT_SENT) from error

    def _out_of_time(self, server_id: str, began: float, slot: ResultSlot) -> ToolscaleError:
        used = self._connections.get(server_id)
        if self._waits_for_slot(used, slot):
            return self._admission.no_slot()
        if used:
            used.retire_if_silent_since(began)
        return ServerTimeout(server_id, f"no answer within {self._limits.timeout_s:g} s")

    @staticmethod
    def _waits_for_slot(used: Connection | None, slot: ResultSlot) -> bool:
        return slot.is_waiting or (used is not None and used.waits_for_slot)

    async def _call(
        self, call: UpstreamRequest[ResultT], target: Target, resources: CallResources, deadline: CallDeadline
    ) -> ResultT:
        for _ in range(2):
            deadline.connecting()
            connection = await self._connection(call.server_id, target, call.protocol_version)
            try:
                return await connection.call(call, resources.progress, resources.slot, deadline)
            except NothingSent:
                connection.retire()
        broke = ServerUnreachable(call.server_id, "the connection broke twice before the call was sent")
        raise broke.with_delivery(Delivery.NOT_SENT)

    async def _connection(self, server_id: str, target: Target, protocol_version: str | None) -> Connection:
        while True:
            connection = self._connections.get(server_id)
            if connection is not None and connection.accepts_calls and connection.is_for(target):
                return connection
            if connection is not None:
                connection.retire()
            if len(self._not_ended) < self._limits.max_connections:
                return self._open(server_id, target, protocol_version)
            await self._make_room()

    def _open(self, server_id: str, target: Target, protocol_version: str | None) -> Connection:
        connection = Connection(
            server_id, target, self._limits, self._admission.slot(f"server {server_id}"), protocol_version
        )
        self._connections[server_id] = connection
        self._not_ended.add(connection)
        self._tasks.start_soon(self._keep, server_id, connection)
        return connection

    async def _keep(self, server_id: str, connection: Connection) -> None:
        try:
            await connection.run()
        except Exception:  # noqa: BLE001  # would end the connections to all servers
            _log.exception("connection_failed", server=server_id)
        finally:
            self._forget(server_id, connection)

    def _forget(self, server_id: str, connection: Connection) -> None:
        self._not_ended.discard(connection)
        if self._connections.get(server_id) is connection:
            del self._connections[server_id]
        self._one_ended.set()
        self._one_ended = anyio.Event()

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
        await self._one_ended.wait()


def _not_connected(target: Target | None, waited_s: float, start_timeout_s: float) -> str:
    limit = f"within {waited_s:.3g} s"
    if target is None:
        return f"its host name was not looked up {limit}"
    if isinstance(target, StdioTarget) and waited_s < start_timeout_s:
        # a second child would install the same packages at the same time
        return f"not started {limit}; the start continues, so call again later"
    return f"no connection {limit}"
