"""One open connection to one server, which receives its notifications of changed tools."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NoReturn

import anyio
from mcp import Client, MCPError
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, Implementation, ToolListChangedNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from shared.errors import NotificationsUnsupported, ServerTimeout, ServerUnreachable
from shared.upstream.dial import open_transport
from shared.upstream.session import FOREIGN_ERRORS, SessionState, status_error, to_server_error
from shared.upstream.target import HttpTarget, Target, secrets_of
from workers.fetch.raw_tools import RawToolInterceptor

# This connection carries no tools, so its messages are small.
MAX_MESSAGE_BYTES = 256 << 10
# A message has a few hundred bytes. At this rate a flood costs almost no CPU and blocks its sender.
MAX_BYTES_PER_S = 16 << 10
# Servers send a keep-alive every 15 s or never; a connection that is silent for longer than this is replaced.
SILENCE_S = 600.0

_STREAM_PATIENCE_S = 5.0
_FAREWELL_S = 2.0
_US = Implementation(name="toolscale", version="1")
_CANNOT_LISTEN = (METHOD_NOT_FOUND, INVALID_REQUEST, INVALID_PARAMS)
# A later request for the stream may succeed after one of these.
_TRANSIENT_STATUSES = (
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
)


@dataclass(slots=True)
class NotificationSessionState(SessionState):
    """State of one notification session.

    `opened` is set once the server grants a stream for its own messages, `ended` when that stream ends.
    """

    opened: anyio.Event = field(default_factory=anyio.Event)
    ended: anyio.Event = field(default_factory=anyio.Event)

    async def received(self, size_bytes: int) -> None:
        """Pause reading, so that a server sends at most MAX_BYTES_PER_S."""
        await anyio.sleep(size_bytes / MAX_BYTES_PER_S)

    def stream_answered(self, status: int) -> None:
        """End the session when the server rejects the stream; the SDK ignores the rejection."""
        if self.ended.is_set():  # the SDK reconnects without a pause while the session closes
            self.fail(ServerUnreachable(self.server_id, "the connection ended"))
        elif status < HTTPStatus.BAD_REQUEST:
            self.opened.set()
        elif status in _TRANSIENT_STATUSES or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self.fail(status_error(self, status))
        else:
            self.fail(NotificationsUnsupported(self.server_id, f"HTTP {status}: it has no stream for its own messages"))

    def stream_ended(self) -> None:
        """Set `ended`."""
        self.ended.set()


async def listen(
    server_id: str,
    target: Target,
    connect_s: float,
    *,
    on_connected: Callable[[], None],
    on_changed: Callable[[], None],
) -> NoReturn:
    """Listen until the connection ends; `connect_s` bounds the time until it is established.

    `on_connected` is called when the server can send notifications, and `on_changed` for each one. Both return at once.
    After a cancellation, the session still closes properly, within about two seconds.

    Raises:
        NotificationsUnsupported: the server sends no notifications of changed tools.
        ServerError: the reason why the connection failed or ended.
    """
    scope = anyio.CancelScope(deadline=anyio.current_time() + connect_s)
    state = NotificationSessionState(server_id, scope, secrets_of(target))
    session = _Session(target, state, on_connected, on_changed)
    error: Exception = ServerUnreachable(server_id, "the connection ended")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.close_when_cancelled)
        with anyio.CancelScope(shield=True):
            error = await session.end_reason(connect_s)
        tasks.cancel_scope.cancel()
    raise error


class _Session:
    """One session with one server."""

    def __init__(
        self,
        target: Target,
        state: NotificationSessionState,
        on_connected: Callable[[], None],
        on_changed: Callable[[], None],
    ) -> None:
        self._target = target
        self._state = state
        self._on_connected = on_connected
        self._on_changed = on_changed
        self._open_scope: anyio.CancelScope | None = None

    async def close_when_cancelled(self) -> None:
        """End the session, or abandon the attempt to establish it, once this task is cancelled."""
        try:
            await anyio.sleep_forever()
        finally:
            (self._open_scope or self._state.scope).cancel()

    async def end_reason(self, connect_s: float) -> Exception:
        """Connect, listen, and return the reason why the session failed or ended."""
        state = self._state
        try:
            with state.scope:
                await self._run()
        except FOREIGN_ERRORS as error:
            server_error = to_server_error(state, error)
            if server_error is None:
                return error
            server_error.__cause__ = error  # the caller raises it outside the task group
            return server_error
        return state.error or ServerTimeout(state.server_id, f"no connection to listen on within {connect_s:g} s")

    async def _run(self) -> None:
        """Listen until the connection ends, and close the session on the server."""
        state = self._state
        transport = RawToolInterceptor(open_transport(self._target, MAX_MESSAGE_BYTES, SILENCE_S, state), state)
        async with Client(
            transport, mode="auto", cache=None, client_info=_US, message_handler=self._on_message
        ) as client:
            with anyio.CancelScope() as self._open_scope:
                if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
                    await self._subscribe(client)
                else:
                    await self._await_stream()
                    self._connected()
                    await state.ended.wait()
            # without a proper close the session stays open on its server
            state.scope.deadline = anyio.current_time() + _FAREWELL_S
        raise state.fail(ServerUnreachable(state.server_id, "the connection ended"))

    async def _subscribe(self, client: Client) -> None:
        """Listen by `subscriptions/listen` until client or server ends the subscription."""
        state = self._state
        try:
            async with client.listen(tools_list_changed=True) as subscription:
                if not subscription.honored.tools_list_changed:
                    raise state.fail(NotificationsUnsupported(state.server_id, "it sends no notifications of tools"))
                self._connected()
                async for _ in subscription:
                    pass  # `_on_message` has had the notification
        except MCPError as error:
            if error.code in _CANNOT_LISTEN:
                raise state.fail(NotificationsUnsupported(state.server_id, "it has no subscriptions")) from error
            raise
        except SubscriptionLost as error:
            raise state.fail(ServerUnreachable(state.server_id, "the subscription was lost")) from error

    async def _await_stream(self) -> None:
        """Wait until a server of an earlier revision can send; only streamable HTTP needs a separate stream."""
        if not isinstance(self._target, HttpTarget) or self._target.transport != "streamable-http":
            return
        with anyio.move_on_after(_STREAM_PATIENCE_S):
            await self._state.opened.wait()
        if not self._state.opened.is_set():  # without a session the SDK requests no stream
            server_id = self._state.server_id
            raise self._state.fail(NotificationsUnsupported(server_id, "it keeps no session for notifications"))

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._on_changed()

    def _connected(self) -> None:
        self._state.scope.deadline = math.inf
        self._on_connected()
