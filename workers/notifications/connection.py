"""One open connection to one server, which receives its notifications of changed tools."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import NoReturn

import anyio
from mcp import Client, MCPError
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, Implementation, ToolListChangedNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from shared.errors import NotificationsUnsupported, ServerTimeout, ServerUnreachable
from shared.upstream.dial import HttpTarget, Target
from shared.upstream.secrets import secrets_of
from shared.upstream.transport.errors import FOREIGN_ERRORS, status_error, to_server_error
from shared.upstream.transport.open import open_transport
from shared.upstream.transport.session_state import SessionState
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


@dataclass(frozen=True, slots=True)
class NotificationCallbacks:
    """Callbacks that return at once.

    The session calls `on_connected` when the server can send notifications, and `on_changed` after a change.
    It calls `on_notification` for each notification; several may make one change, and the other way round.
    """

    on_connected: Callable[[], None]
    on_changed: Callable[[], None]
    on_notification: Callable[[], None]


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


async def listen(server_id: str, target: Target, callbacks: NotificationCallbacks, connect_s: float) -> NoReturn:
    """Listen until the connection ends; `connect_s` bounds the time until it is established.

    After a cancellation, the session still closes properly, within about two seconds.

    Raises:
        NotificationsUnsupported: the server sends no notifications of changed tools.
        ServerError: the reason why the connection failed or ended.
    """
    scope = anyio.CancelScope(deadline=anyio.current_time() + connect_s)
    state = NotificationSessionState(server_id, scope, secrets_of(target))
    session = _Session(target, callbacks, state)
    error: Exception = ServerUnreachable(server_id, "the connection ended")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_close_when_cancelled, session)
        with anyio.CancelScope(shield=True):
            error = await _end_reason(session, connect_s)
        tasks.cancel_scope.cancel()
    raise error


async def _close_when_cancelled(session: _Session) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        session.close()


async def _end_reason(session: _Session, connect_s: float) -> Exception:
    """Run the session, and return the reason why it failed or ended."""
    state = session.state
    try:
        with state.scope:
            await session.run()
    except FOREIGN_ERRORS as error:
        server_error = to_server_error(state, error)
        if server_error is None:
            return error
        server_error.__cause__ = error  # the caller raises it outside the task group
        return server_error
    return state.error or ServerTimeout(state.server_id, f"no connection to listen on within {connect_s:g} s")


class _Session:
    """One session with one server."""

    def __init__(self, target: Target, callbacks: NotificationCallbacks, state: NotificationSessionState) -> None:
        self.state = state
        self._target = target
        self._callbacks = callbacks
        self._open_scope: anyio.CancelScope | None = None

    def close(self) -> None:
        """End the session, or abandon the attempt to establish it."""
        (self._open_scope or self.state.scope).cancel()

    async def run(self) -> None:
        """Connect, listen until the connection ends, and close the session on the server.

        Raises:
            ServerError: the connection failed or ended.
        """
        state = self.state
        transport = RawToolInterceptor(open_transport(self._target, MAX_MESSAGE_BYTES, SILENCE_S, state), state)
        async with Client(
            transport, mode="auto", cache=None, client_info=_US, message_handler=self._on_message
        ) as client:
            with anyio.CancelScope() as self._open_scope:
                await self._listen(client)
            # without a proper close the session stays open on its server
            state.scope.deadline = anyio.current_time() + _FAREWELL_S
        raise state.fail(ServerUnreachable(state.server_id, "the connection ended"))

    async def _listen(self, client: Client) -> None:
        if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            await _subscribe(client, replace(self._callbacks, on_connected=self._on_connected), self.state)
        else:
            await _await_stream(self._target, self.state)
            self._on_connected()
            await self.state.ended.wait()

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):  # also called for those of a subscription
            self._callbacks.on_notification()
            self._callbacks.on_changed()

    def _on_connected(self) -> None:
        self.state.scope.deadline = math.inf
        self._callbacks.on_connected()


async def _subscribe(client: Client, callbacks: NotificationCallbacks, state: NotificationSessionState) -> None:
    """Listen by `subscriptions/listen` until client or server ends the subscription."""
    try:
        async with client.listen(tools_list_changed=True) as subscription:
            if not subscription.honored.tools_list_changed:
                raise state.fail(NotificationsUnsupported(state.server_id, "it sends no notifications of tools"))
            callbacks.on_connected()
            async for _ in subscription:
                callbacks.on_changed()
    except MCPError as error:
        if error.code in _CANNOT_LISTEN:
            raise state.fail(NotificationsUnsupported(state.server_id, "it has no subscriptions")) from error
        raise
    except SubscriptionLost as error:
        raise state.fail(ServerUnreachable(state.server_id, "the subscription was lost")) from error


async def _await_stream(target: Target, state: NotificationSessionState) -> None:
    """Wait until a server of an earlier revision can send; only streamable HTTP needs a separate stream."""
    if not isinstance(target, HttpTarget) or target.transport != "streamable-http":
        return
    with anyio.move_on_after(_STREAM_PATIENCE_S):
        await state.opened.wait()
    if not state.opened.is_set():  # without a session the SDK requests no stream
        raise state.fail(NotificationsUnsupported(state.server_id, "it keeps no session for notifications"))
