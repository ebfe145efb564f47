"""One connection with one server, held open to hear when its tools change."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from shared.upstream.transport.errors import FOREIGN_ERRORS, to_server_error
from shared.upstream.transport.open import open_transport
from workers.fetch.raw_tools import RawToolInterceptor
from workers.notifications.rate_limit import NotificationSessionState

# No tools come over this connection, so its messages are small.
MAX_MESSAGE_BYTES = 256 << 10
# Servers say something every 15 s or never; a connection that is silent for longer than this is made anew.
SILENCE_S = 600.0

_STREAM_PATIENCE_S = 5.0
_FAREWELL_S = 2.0
_US = Implementation(name="toolscale", version="1")
_CANNOT_LISTEN = (METHOD_NOT_FOUND, INVALID_REQUEST, INVALID_PARAMS)


@dataclass(frozen=True, slots=True)
class NotificationCallbacks:
    """Whom to tell: `connected` once nothing can be missed any more, `changed` of changes, `noticed` of each notice.

    All return at once. Notices are counted; one may be told of as several changes, and the other way round.
    """

    on_connected: Callable[[], None]
    on_changed: Callable[[], None]
    on_notification: Callable[[], None]


async def listen(server_id: str, target: Target, callbacks: NotificationCallbacks, connect_s: float) -> NoReturn:
    """Listen until the connection ends; `connect_s` bounds how long it may take to come about.

    Cancelled, it still takes its leave of the server, within two seconds or so.

    Raises:
        NotificationsUnsupported: the server does not tell when its tools change.
        ServerError: why there is no connection, or none any more.
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
    """Return why there is no connection, or none any more."""
    state = session.state
    try:
        with state.scope:
            await session.run()
    except FOREIGN_ERRORS as error:
        server_error = to_server_error(state, error)
        if server_error is None:
            return error
        server_error.__cause__ = error  # it is raised where no group of tasks wraps it
        return server_error
    return state.error or ServerTimeout(state.server_id, f"no connection to listen on within {connect_s:g} s")


class _Session:
    """One session with one server, and the way to end it properly."""

    def __init__(self, target: Target, callbacks: NotificationCallbacks, state: NotificationSessionState) -> None:
        self.state = state
        self._target = target
        self._callbacks = callbacks
        self._open_scope: anyio.CancelScope | None = None

    def close(self) -> None:
        """End the session; one that is not established yet is given up."""
        (self._open_scope or self.state.scope).cancel()

    async def run(self) -> None:
        """Connect, listen for as long as it lasts, and leave.

        Raises:
            ServerError: the connection ended, or there was none to listen on.
        """
        state = self.state
        transport = RawToolInterceptor(open_transport(self._target, MAX_MESSAGE_BYTES, SILENCE_S, state), state)
        async with Client(
            transport, mode="auto", cache=None, client_info=_US, message_handler=self._on_message
        ) as client:
            with anyio.CancelScope() as self._open_scope:
                await self._listen(client)
            # a session that is not ended here stays open on its server
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
        if isinstance(message, ToolListChangedNotification):  # those of a subscription come here, too
            self._callbacks.on_notification()
            self._callbacks.on_changed()

    def _on_connected(self) -> None:
        self.state.scope.deadline = math.inf
        self._callbacks.on_connected()


async def _subscribe(client: Client, callbacks: NotificationCallbacks, state: NotificationSessionState) -> None:
    """Listen by `subscriptions/listen` until either side ends it."""
    try:
        async with client.listen(tools_list_changed=True) as subscription:
            if not subscription.honored.tools_list_changed:
                raise state.fail(NotificationsUnsupported(state.server_id, "it does not tell of changed tools"))
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
    """Wait until a server of an earlier revision can tell; only streamable HTTP needs a stream of its own for that."""
    if not isinstance(target, HttpTarget) or target.transport != "streamable-http":
        return
    with anyio.move_on_after(_STREAM_PATIENCE_S):
        await state.opened.wait()
    if not state.opened.is_set():  # the SDK asks for none without a session
        raise state.fail(NotificationsUnsupported(state.server_id, "it keeps no session that it could tell us in"))
