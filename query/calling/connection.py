"""One MCP session with one server, opened and closed by one task and shared by any number of calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

import anyio
from mcp import Client, MCPError
from mcp_types import Implementation
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import ValidationError

from query.calling.deadlines import CallDeadline
from query.calling.delivery import NOT_FROM_THE_TOOL, PERHAPS_CARRIED_OUT, delivery_at_end, delivery_of_status
from query.calling.limits import ResultSlot
from query.calling.masking import CredentialMask
from query.calling.session_state import CallCounter, Phase, Session, TargetMatch
from query.calling.streams import CallExchange, MessageSlots, ObservedReceiveStream, ObservedSendStream
from shared.errors import (
    Delivery,
    ProtocolViolation,
    ServerError,
    ServerFailed,
    ServerTimeout,
    ServerUnreachable,
)
from shared.upstream.dial import open_transport
from shared.upstream.session import (
    FOREIGN_ERRORS,
    HttpExchange,
    SessionState,
    answered,
    current_exchange,
    is_connection_lost,
    is_stand_in,
    to_answer_error,
    to_server_error,
)
from shared.upstream.target import HttpTarget, StdioTarget, Target, credentials_of, secrets_of
from shared.validation import first_problem

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams as Streams
    from mcp.shared.dispatcher import ProgressFnT

    from query.calling.upstream_request import ResultT, UpstreamRequest

_QUOTED_CHARACTERS = 2_000
_FAREWELL_S = 2.0
_LAST_WORDS_S = 5.0
_US = Implementation(name="toolscale", version="1")


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits on calls and connections; `timeout_s` includes connecting.

    A child process may take `start_timeout_s` to start, if that is longer: it may install packages.
    `per_caller` limits the calls in flight of one caller, `large_at_once` the large results in memory of all callers.
    """

    timeout_s: float = 60.0
    start_timeout_s: float = 0.0
    # A larger result would not fit the context window of any client.
    max_message_bytes: int = 4 << 20
    max_connections: int = 64
    # Longer than a client pauses between two calls; an idle stdio server costs a process.
    idle_s: float = 300.0
    per_caller: int = 64
    # Each takes up to 60 MiB while it is parsed.
    large_at_once: int = 4


class NothingSent(Exception):
    """The connection was dead before the call was sent, so the call may be sent again."""


class Connection:
    """A session that stays open while calls use it, and `limits.idle_s` longer."""

    def __init__(
        self, server_id: str, target: Target, limits: CallLimits, slot: ResultSlot, protocol_version: str | None
    ) -> None:
        """`slot` is for messages on a stream that calls share."""
        self._target_match = TargetMatch(target)
        self._limits = limits
        self._open_within_s = limits.timeout_s
        if isinstance(target, StdioTarget):
            self._open_within_s = max(limits.timeout_s, limits.start_timeout_s)
        self._slots = MessageSlots(slot)
        # a server of the handshake era can take ten seconds to answer the newer version probe
        self._mode = "legacy" if protocol_version in HANDSHAKE_PROTOCOL_VERSIONS else "auto"
        self._evidence = SessionState(
            server_id,
            anyio.CancelScope(deadline=anyio.current_time() + self._open_within_s),
            secrets_of(target),
            may_hold_large=self._slots.try_acquire,
        )
        self._mask = CredentialMask(credentials_of(target))
        self._session = Session()
        self._calls = CallCounter()
        self._last_message_at = anyio.current_time()

    @property
    def accepts_calls(self) -> bool:
        """Return whether a call may use this connection, or wait until it is open."""
        return self._calls.accepts_calls and not self._session.ended.is_set()

    @property
    def in_flight(self) -> int:
        """Return the number of calls in flight."""
        return self._calls.in_flight

    @property
    def last_used(self) -> float:
        """Return the end of the last call, by the event loop's clock."""
        return self._calls.last_used

    @property
    def may_have_state(self) -> bool:
        """Return whether the server may keep state for this session; over HTTP without a session id, it cannot."""
        target = self._target_match.target
        is_by_id = isinstance(target, HttpTarget) and target.transport == "streamable-http"
        return self._evidence.has_session_id or not is_by_id

    @property
    def waits_for_slot(self) -> bool:
        """Return whether a large message waits for a slot and delays those after it."""
        return self._slots.own.is_waiting

    def is_for(self, target: Target) -> bool:
        """Return whether this connection still leads to a newly resolved target."""
        return self._target_match.matches(target)

    def retire(self) -> None:
        """Accept no more calls, and close after the last one."""
        self._calls.drain()

    def is_silent_since(self, moment: float) -> bool:
        """Return whether the session is not open yet, or received no message since this moment."""
        return not self._session.settled.is_set() or self._last_message_at < moment

    def retire_if_silent_since(self, moment: float) -> None:
        """Retire an open connection that received no message since this moment of the event loop's clock."""
        # a child that still starts may install packages, so no second one may start
        if self._session.settled.is_set() and self._last_message_at < moment:
            self.retire()

    async def run(self) -> None:
        """Keep the session open until it is retired, is idle for too long, or breaks."""
        error: ServerError | None = None
        try:
            with self._evidence.scope:
                await self._stay()
            if self._evidence.scope.cancelled_caught:
                error = self._end(self._out_of_time())
        except FOREIGN_ERRORS as foreign:
            error = self._end(to_server_error(self._evidence, foreign))
        finally:
            self._slots.own.close()  # of a message that broke off
            self._session.end(error)

    async def opened(self) -> None:
        """Return once the session is open.

        Raises:
            ServerError: it cannot be opened, or has ended.
        """
        await self._session.settled.wait()
        if self._session.client is None:
            raise self._session.error or self._broke()

    async def call(
        self, call: UpstreamRequest[ResultT], on_progress: ProgressFnT, slot: ResultSlot, deadline: CallDeadline
    ) -> ResultT:
        """Send one call and return its result; a large result waits for `slot`.

        Raises:
            NothingSent: the connection was dead before the call was sent.
            ServerError: no connection, it broke, or the server returned an error or an invalid result. Its `delivery`
                is that of this call.
        """
        # a message to a child counts as sent: a pipe does not acknowledge it
        exchange = CallExchange(sent=not isinstance(self._target_match.target, HttpTarget), slot=slot)
        with self._calls.count_call(), _as_current(exchange):
            return await self._call_once(call, on_progress, exchange, deadline)

    async def _call_once(
        self, call: UpstreamRequest[ResultT], on_progress: ProgressFnT, exchange: HttpExchange, deadline: CallDeadline
    ) -> ResultT:
        was_open = self._session.phase is Phase.OPEN and self.accepts_calls
        try:
            await self._session.settled.wait()
            deadline.connected()
            return await self._send(call, on_progress)
        except MCPError as error:
            raise await self._to_call_error(error, exchange, was_open=was_open) from error
        except ValidationError as error:
            reason = f"answers with an invalid result: {first_problem(error)}"
            raise ProtocolViolation(call.server_id, reason).with_delivery(Delivery.ANSWERED) from error

    async def _stay(self) -> None:
        transport = self._observed(open_transport(self._target_match.target, *self._bounds(), self._evidence))
        async with Client(transport, mode=self._mode, cache=None, client_info=_US) as client:
            self._evidence.scope.deadline = float("inf")
            self._session.open(client)
            await self._calls.wait_until_idle(self._limits.idle_s)
            self._evidence.scope.deadline = anyio.current_time() + _FAREWELL_S

    def _bounds(self) -> tuple[int, float]:
        # no read timeout below the connection's lifetime: calls have their own deadlines, and an event stream may
        # be silent between two calls
        return self._limits.max_message_bytes, self._limits.timeout_s + self._limits.idle_s

    async def _send(self, call: UpstreamRequest[ResultT], on_progress: ProgressFnT) -> ResultT:
        client = self._session.client
        if client is None or self._calls.drained.is_set():
            if self._session.was_opened or self._session.error is None:
                raise NothingSent
            raise self._session.error.with_delivery(Delivery.NOT_SENT)
        return self._mask.masked(await call.send(client, on_progress))

    async def _to_call_error(
        self, error: MCPError, exchange: HttpExchange, *, was_open: bool
    ) -> NothingSent | ServerError:
        """Return our error for one of the SDK: a lost connection, an HTTP failure, or the server's own error."""
        if was_open and self._lost_session(exchange):
            return NothingSent()
        if is_connection_lost(error):
            with anyio.move_on_after(_LAST_WORDS_S):
                await self._session.ended.wait()
            if was_open and not exchange.sent:
                return NothingSent()
            broke = self._session.error or self._broke()
            return broke.with_delivery(delivery_at_end(broke, exchange))
        status = exchange.http_status
        if status is not None and (status in NOT_FROM_THE_TOOL or is_stand_in(error)):
            return to_answer_error(self._evidence, error, status).with_delivery(delivery_of_status(status))
        words = answered(self._evidence, error, _QUOTED_CHARACTERS)
        failed = ServerFailed(self._evidence.server_id, f"answers with an error: {words}")
        return failed.with_delivery(Delivery.ANSWERED)

    def _lost_session(self, exchange: HttpExchange) -> bool:
        """Return whether the server refused the call because it lost our session, such as by a restart."""
        client = self._session.client
        is_of_a_session = client is None or client.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS
        return is_of_a_session and exchange.http_status == HTTPStatus.NOT_FOUND

    @asynccontextmanager
    async def _observed(self, transport: AbstractAsyncContextManager[Streams]) -> AsyncGenerator[Streams]:
        """Yield the transport's streams; the session drains when the incoming stream ends."""
        async with transport as (incoming, outgoing):
            yield (
                ObservedReceiveStream(incoming, self._on_message, self._calls.drained.set),
                ObservedSendStream(outgoing, self._slots.on_sent),
            )

    def _on_message(self, message: object) -> None:
        self._last_message_at = anyio.current_time()
        self._slots.on_received(message)

    def _end(self, of_opening: ServerError | None) -> ServerError:
        """Return the error for interrupted calls: why the session never opened, or that it broke."""
        if self._session.was_opened or of_opening is None:
            return self._evidence.error or self._broke()
        return self._evidence.error or of_opening

    def _out_of_time(self) -> ServerError:
        reason = self._evidence.protocol_violation or f"no connection within {self._open_within_s:g} s"
        return ServerTimeout(self._evidence.server_id, reason)

    def _broke(self) -> ServerError:
        return ServerUnreachable(
            self._evidence.server_id, f"the connection broke during the call, which {PERHAPS_CARRIED_OUT}"
        )


@contextmanager
def _as_current(exchange: CallExchange) -> Generator[None]:
    """Attribute requests and responses within the block to this call; the SDK copies the context of the sender."""
    token = current_exchange.set(exchange)
    try:
        yield
    finally:
        current_exchange.reset(token)
