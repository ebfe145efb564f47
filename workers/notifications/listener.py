"""The listener of one server: keeps a connection open, and requests a reconciliation after each change."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NoReturn

import anyio
import structlog
from mcp import Client, MCPError
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, Implementation, ToolListChangedNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from prometheus_client import Gauge

from shared.errors import NotificationsUnsupported, ServerError, ServerTimeout, ServerUnreachable
from shared.upstream.opening import open_client
from shared.upstream.session import FOREIGN_ERRORS, SessionState, status_error, to_server_error
from shared.upstream.target import HttpTarget, Target, secrets_of
from workers.fetch.session import RawToolInterceptor

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

SERVERS = Gauge("toolscale_subscription_servers", "Servers to listen to, and those with a connection.", ["state"])
WANTED, CONNECTED = SERVERS.labels("wanted"), SERVERS.labels("connected")

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ReconnectPolicy:
    """Times in seconds.

    Two events for one server are `least_between_s` apart, doubling to `most_between_s` while its changes continue.
    A reconnection waits `first_retry_s`, doubling to `longest_retry_s`, with a random reduction of up to half.
    A connection that lasted `good_s` resets that backoff.
    `unsupported_s` is the wait after a server that sends no notifications.
    """

    connect_s: float = 30.0
    least_between_s: float = 1.0
    most_between_s: float = 60.0
    first_retry_s: float = 1.0
    longest_retry_s: float = 300.0
    good_s: float = 60.0
    unsupported_s: float = 3600.0


DEFAULT_RECONNECT = ReconnectPolicy()


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits on open connections, and on connections that are being established."""

    connections: anyio.CapacityLimiter
    connecting: anyio.Semaphore = field(default_factory=lambda: anyio.Semaphore(16))


class Backoff:
    """Seconds to wait before a retry: doubling from `first_s` up to `longest_s`."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = self._next_s = first_s
        self._longest_s = longest_s

    def next_s(self) -> float:
        """Return the wait, and double the next one."""
        wait_s, self._next_s = self._next_s, min(self._longest_s, self._next_s * 2)
        return wait_s

    def reset(self) -> None:
        """Return to the first wait after a success."""
        self._next_s = self._first_s


class Listener:
    """Listens to one server until cancelled; no behaviour of the server ends it.

    `target` returns the server's current target, and `record_change` whether the event needs no repetition. Both are
    called in a thread, since they may block.
    """

    def __init__(
        self,
        server_id: str,
        target: Callable[[], Target],
        record_change: Callable[[], bool],
        limits: ConnectionLimits,
        policy: ReconnectPolicy,
    ) -> None:
        self._server_id = server_id
        self._target = target
        self._record_change = record_change
        self._limits = limits
        self._policy = policy
        self._changed = anyio.Event()
        self._connected_at = math.inf

    async def run(self) -> None:
        """Listen until cancelled."""
        backoff = Backoff(self._policy.first_retry_s, self._policy.longest_retry_s)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._record_changes)
            while True:
                wait_s = await self._until_lost(backoff)
                await anyio.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311  # spreads load, guards nothing

    async def _until_lost(self, backoff: Backoff) -> float:
        """Listen until the connection ends; return the wait before the next connection."""
        self._connected_at = math.inf
        try:
            await self._connect()
        except NotificationsUnsupported as error:
            _log.info("notifications_unsupported", server=self._server_id, reason=error.reason)
            return self._policy.unsupported_s
        except ServerError as error:
            _log.debug("subscription_closed", server=self._server_id, error=error.kind, reason=error.reason)
        finally:
            CONNECTED.dec(math.isfinite(self._connected_at))
        if time.monotonic() - self._connected_at >= self._policy.good_s:
            backoff.reset()
        return backoff.next_s()

    async def _connect(self) -> None:
        async with self._limits.connections:
            with ExitStack() as connecting:
                await self._limits.connecting.acquire()
                connecting.callback(self._limits.connecting.release)
                target = await anyio.to_thread.run_sync(self._target, abandon_on_cancel=True)

                def on_connected() -> None:
                    connecting.close()
                    self._connected_at = time.monotonic()
                    CONNECTED.inc()
                    _log.debug("subscription_opened", server=self._server_id)
                    self._changed.set()  # the tools may have changed before the connection was open

                await listen(
                    self._server_id,
                    target,
                    self._policy.connect_s,
                    on_connected=on_connected,
                    on_changed=lambda: self._changed.set(),
                )

    async def _record_changes(self) -> None:
        """Request a reconciliation after each change; the interval doubles while changes continue."""
        pause = Backoff(self._policy.least_between_s, self._policy.most_between_s)
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            if not await anyio.to_thread.run_sync(self._record_change, abandon_on_cancel=True):
                self._changed.set()
            await anyio.sleep(pause.next_s())
            if not self._changed.is_set():
                pause.reset()


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


@dataclass(slots=True)
class NotificationSessionState(SessionState):
    """State of one notification session.

    `opened` is set once the server grants a stream for its own messages, `ended` when that stream ends.
    """

    opened: anyio.Event = field(default_factory=anyio.Event)
    ended: anyio.Event = field(default_factory=anyio.Event)

    def begin_again(self) -> None:
        """Forget the streams of the first attempt too."""
        SessionState.begin_again(self)
        self.opened, self.ended = anyio.Event(), anyio.Event()

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
            self.fail(status_error(self, status, body=self.words))
        else:
            self.fail(NotificationsUnsupported(self.server_id, f"HTTP {status}: it has no stream for its own messages"))

    def stream_ended(self) -> None:
        """Set `ended`."""
        self.ended.set()


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

        async def on_message(message: IncomingMessage) -> None:
            if isinstance(message, ToolListChangedNotification):
                self._on_changed()

        interceptor = RawToolInterceptor(state)
        async with open_client(
            lambda transport, mode: Client(
                interceptor.around(transport), mode=mode, cache=None, client_info=_US, message_handler=on_message
            ),
            *(self._target, MAX_MESSAGE_BYTES, SILENCE_S, state),
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
                    pass  # `on_message` has had the notification
        except MCPError as error:
            if error.code in _CANNOT_LISTEN:
                raise state.fail(NotificationsUnsupported(state.server_id, "it has no subscriptions")) from error
            raise
        except SubscriptionLost as error:
            raise state.fail(ServerUnreachable(state.server_id, "the subscription was lost")) from error

    async def _await_stream(self) -> None:
        """Wait until a server of an earlier revision can send; only streamable HTTP needs a separate stream."""
        if not isinstance(self._target, HttpTarget) or self._state.is_sse:
            return
        with anyio.move_on_after(_STREAM_PATIENCE_S):
            await self._state.opened.wait()
        if not self._state.opened.is_set():  # without a session the SDK requests no stream
            server_id = self._state.server_id
            raise self._state.fail(NotificationsUnsupported(server_id, "it keeps no session for notifications"))

    def _connected(self) -> None:
        self._state.scope.deadline = math.inf
        self._on_connected()
