"""One connection per server, opened by the first call and kept while it is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import structlog
from anyio.abc import TaskGroup
from mcp_types import CallToolResult, InputRequiredResult

from query.calling.connection import CallLimits, Connection, NothingSent, ToolCall
from query.calling.endpoints import TargetResolver
from query.calling.limits import Admission, ResultSlot
from query.calling.progress import ProgressRelay
from shared.errors import CallsExhausted, ServerTimeout, ServerUnreachable, ToolscaleError

if TYPE_CHECKING:
    from shared.catalog import Endpoint
    from shared.upstream.dial import Target

    CallResult = CallToolResult | InputRequiredResult

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class CallResources:
    """The caller's side of a call: where progress goes, and the slot for a large result."""

    progress: ProgressRelay
    slot: ResultSlot


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

    async def call(self, call: ToolCall, endpoint: Endpoint, resources: CallResources) -> CallResult:
        """Call a tool and return its server's result.

        Raises:
            ServerTimeout: no answer in time; the server was sent a cancellation.
            CallsExhausted: too many connections in use, or too many large results in memory.
            AddressForbidden: the endpoint may not be connected to.
            ServerError: no connection, it broke, or the server returned an error or an invalid result.
        """
        began = anyio.current_time()
        target: Target | None = None
        with anyio.move_on_after(self._limits.timeout_s):
            target = await self._resolver.resolve(call.server_id, endpoint)
            result = await self._call(call, target, resources)
            await resources.progress.drain()
            return result
        raise self._out_of_time(call.server_id, began, target, resources.slot)

    def _out_of_time(self, server_id: str, began: float, target: Target | None, slot: ResultSlot) -> ToolscaleError:
        limit = f"within {self._limits.timeout_s:g} s"
        if target is None:
            return ServerTimeout(server_id, f"its host name was not looked up {limit}")
        used = self._connections.get(server_id)
        if slot.is_waiting or (used and used.waits_for_slot):
            return self._admission.no_slot()
        if used:
            used.retire_if_silent_since(began)
        return ServerTimeout(server_id, f"no answer {limit}")

    async def _call(self, call: ToolCall, target: Target, resources: CallResources) -> CallResult:
        for _ in range(2):
            connection = await self._connection(call, target)
            try:
                return await connection.call(call, resources.progress, resources.slot)
            except NothingSent:
                connection.retire()
        raise ServerUnreachable(call.server_id, "the connection broke twice before the call was sent")

    async def _connection(self, call: ToolCall, target: Target) -> Connection:
        while True:
            connection = self._connections.get(call.server_id)
            if connection is not None and connection.accepts_calls and connection.is_for(target):
                return connection
            if connection is not None:
                connection.retire()
            if len(self._not_ended) < self._limits.max_connections:
                return self._open(call, target)
            await self._make_room()

    def _open(self, call: ToolCall, target: Target) -> Connection:
        connection = Connection(call.server_id, target, self._limits, self._admission.slot(), call.protocol_version)
        self._connections[call.server_id] = connection
        self._not_ended.add(connection)
        self._tasks.start_soon(self._keep, call.server_id, connection)
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
