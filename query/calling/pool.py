"""One connection a server, opened when it is first called and kept while it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup
from mcp_types import CallToolResult, InputRequiredResult

from query.calling.connection import CallLimits, Connection, NothingSent, ToolCall
from query.calling.relay import ProgressRelay
from shared.errors import CallsExhausted, ServerTimeout, ServerUnreachable
from shared.upstream.dial import HttpTarget, Target

if TYPE_CHECKING:
    Answer = CallToolResult | InputRequiredResult


class Pool:
    """Connections that live in the tasks of one event loop. Not safe for other threads."""

    def __init__(self, tasks: TaskGroup, limits: CallLimits) -> None:
        self._tasks = tasks
        self._limits = limits
        self._connections: dict[str, Connection] = {}

    async def call(self, call: ToolCall, target: Target, progress: ProgressRelay) -> Answer:
        """Call a tool and return what its server answers.

        Raises:
            ServerTimeout: no answer within the time; the server was told that nobody waits any more.
            CallsExhausted: as many connections as may be open are in use.
            ServerError: no connection, it broke, or the server answered with an error or with what is no result.
        """
        began = anyio.current_time()
        with anyio.move_on_after(self._limits.timeout_s):
            answer = await self._call(call, target, progress)
            await progress.drain()
            return answer
        if used := self._connections.get(call.server_id):
            used.retire_if_silent_since(began)
        raise ServerTimeout(call.server_id, f"no answer within {self._limits.timeout_s:g} s")

    async def _call(self, call: ToolCall, target: Target, progress: ProgressRelay) -> Answer:
        for _ in range(2):
            connection = self._connection(call, target)
            try:
                return await connection.call(call, progress)
            except NothingSent:
                connection.retire()
        raise ServerUnreachable(call.server_id, "the connection broke twice before the call was sent")

    def _connection(self, call: ToolCall, target: Target) -> Connection:
        known = self._connections.get(call.server_id)
        if known is not None and known.takes_calls and _is_same(known.target, target):
            return known
        if known is not None:
            known.retire()
        return self._open(call, target)

    def _open(self, call: ToolCall, target: Target) -> Connection:
        self._make_room()
        connection = Connection(call.server_id, target, self._limits, call.protocol_version)
        self._connections[call.server_id] = connection
        self._tasks.start_soon(self._keep, call.server_id, connection)
        return connection

    async def _keep(self, server_id: str, connection: Connection) -> None:
        await connection.own()
        if self._connections.get(server_id) is connection:
            del self._connections[server_id]

    def _make_room(self) -> None:
        """Close what was used the longest ago and is not in use now, where there are as many as may be."""
        if len(self._connections) < self._limits.max_connections:
            return
        idle = [server_id for server_id, each in self._connections.items() if each.in_flight == 0]
        if not idle:
            raise CallsExhausted(f"all {self._limits.max_connections} connections to servers are in use")
        oldest = min(idle, key=lambda server_id: self._connections[server_id].last_used)
        self._connections.pop(oldest).retire()


def _is_same(one: Target, other: Target) -> bool:
    """Return whether both lead to the same place in the same way; name servers turn the order of addresses."""
    if isinstance(one, HttpTarget) and isinstance(other, HttpTarget):
        ours, theirs = (one.url, one.transport, one.headers), (other.url, other.transport, other.headers)
        return ours == theirs and set(one.addresses) == set(other.addresses)
    return one == other
