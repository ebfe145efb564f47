"""One MCP session with one server, opened and closed by one task and shared by any number of calls."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from contextvars import Context, ContextVar
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp import Client, MCPError
from mcp.client.context import ClientRequestContext
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    INVALID_REQUEST,
    ClientCapabilities,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitRequest,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    Implementation,
    InputRequest,
    InputResponse,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    ListRootsRequest,
    ListRootsResult,
    ListToolsRequest,
    PaginatedRequestParams,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION
from pydantic import BaseModel, ValidationError
from typing_extensions import override

from query.calling.limits import CallExchange, CallLimits, MessageSlots, ResultSlot
from query.calling.lost_session import is_refused, may_be_lost, names_lost_session
from query.calling.session_tools import SessionTools
from shared.errors import (
    PERHAPS_CARRIED_OUT,
    Delivery,
    ProtocolViolation,
    ServerAuthRequired,
    ServerError,
    ServerFailed,
    ServerTimeout,
    ServerUnreachable,
    SignInsUnavailable,
)
from shared.upstream.masking import Mask
from shared.upstream.opening import HANDSHAKE, PROBE, open_client
from shared.upstream.options import LONGEST_TIMEOUT_S
from shared.upstream.session import (
    CALLED_CLOSING_S,
    FOREIGN_ERRORS,
    Allowance,
    HttpExchange,
    SessionState,
    answered,
    current_exchange,
    error_answer,
    invalid_result,
    is_connection_lost,
    is_stand_in,
    readable_result,
    to_answer_error,
    to_server_error,
)
from shared.upstream.target import HttpTarget, StdioTarget, Target, credentials_of, secrets_of

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams as Streams
    from mcp.shared.dispatcher import ProgressFnT

    from query.calling.kept_sessions import KeptSession
    from query.calling.sessions import CallResources
    from shared.catalog import ToolDefinition

ResultT = TypeVar("ResultT", bound=BaseModel)
Send = Callable[[Client, "ProgressFnT"], Awaitable[ResultT]]
"""Sends a request over a session and returns its result; raises MCPError, or ValidationError for an invalid result."""

# A name server may return other addresses of a host each time; those that are missing for this long are gone.
MOVED_AFTER_S = 60.0

# A server at work reports progress every few seconds; a call that lasts longer is better a task that is polled.
PROGRESS_EXTENDS = 10
PROGRESS_EXTENDS_TO_S = 3600.0

LISTED_IDLE_S = 10.0
"""Seconds that a process stays for a call after a listing started it; many servers are listed at the same time."""

SIGN_IN_CHECKED_EVERY_S = 30.0
"""A session ends so many seconds after its sign-in, at the latest; no call uses it meanwhile."""

_QUOTED_CHARACTERS = 2_000
_FAREWELL_S = 2.0
_LAST_WORDS_S = 5.0
_PING_S = 5.0
_HIGHEST_ID = 1 << 30
_US = Implementation(name="toolscale", version="1")

_REJECTED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS)
# A proxy answers so after its server was removed.
_NO_SERVER = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.GONE)
_NOT_FROM_THE_TOOL = (*_REJECTED, *(status for status in HTTPStatus if status >= HTTPStatus.INTERNAL_SERVER_ERROR))
_WITHOUT_ANSWER = (ServerUnreachable, ServerTimeout, ServerFailed, ServerAuthRequired)

SESSION_LOST = "the server has lost the session, so the next call begins another"


_is_as_sent: ContextVar[bool] = ContextVar("_is_as_sent", default=False)
"""Whether the answer to the request of this context is wanted as the server sent it."""


class NothingSent(Exception):
    """The call may be sent again over a new session: it was not carried out, or its tool may be called twice."""


@dataclass(frozen=True, slots=True)
class SessionHooks:
    """What happens with a session besides its calls.

    `kept` is the session of the caller for whom the connection was opened, for other replicas. `opened` is called
    before the first call, `asks_for_roots` when the server asks for the directories that its client works in, and
    `tools_changed` at its notification of that.
    """

    kept: KeptSession | None
    opened: Callable[[Connection], None]
    asks_for_roots: Callable[[Connection], None]
    tools_changed: Callable[[], None]


class CallDeadline:
    """Limits the time to connect, then the time to answer; both are times of the event loop's clock.

    The attempt runs within `scope`. A reconnection is limited by `connect_by` again. Progress of the server lets the
    call last `timeout_s` from then on, up to `longest_s` in all; an answer of the user, too, takes no time of it.
    """

    def __init__(self, timeout_s: float, answer_by: float, connect_by: float | None = None) -> None:
        self.timeout_s = timeout_s
        self.answer_by = answer_by
        self.connect_by = answer_by if connect_by is None else connect_by
        self.scope = anyio.CancelScope()
        self._began = answer_by - timeout_s
        self._longest_by = self._began + longest_s(timeout_s)
        self._last_progress = self._began
        self._questions = 0
        self.connecting()

    @property
    def reason(self) -> str:
        """Return why the call has ended, after the server did not answer in time."""
        total_s, silent_s = (round(self.answer_by - since, 1) for since in (self._began, self._last_progress))
        return f"no answer within {total_s:g} s in all, and no progress in the last {silent_s:g} s"

    def connecting(self) -> None:
        """Note that the attempt waits for a connection."""
        self.is_connected = False
        self.connecting_since = anyio.current_time()
        self.scope.deadline = self.connect_by

    def connected(self) -> None:
        """Note that the call may be sent from now on."""
        self.is_connected = True
        self.scope.deadline = self.answer_by

    def progressed(self) -> None:
        """Note that the server is at work."""
        self._last_progress = anyio.current_time()
        self.answer_by = max(self.answer_by, min(self._last_progress + self.timeout_s, self._longest_by))
        if self.is_connected and not self._questions:
            self.scope.deadline = self.answer_by

    @contextmanager
    def waiting_for_client(self) -> Generator[None]:
        """Stop the clock while the caller's client answers, which has a limit of its own."""
        began = anyio.current_time()
        self._questions += 1
        self.scope.deadline = float("inf")
        try:
            yield
        finally:
            self._questions -= 1
            if not self._questions:
                waited_s = anyio.current_time() - began
                self.answer_by += waited_s
                self._longest_by += waited_s
                self.scope.deadline = self.answer_by


def longest_s(timeout_s: float) -> float:
    """Return how long a call may last in all while its server reports progress."""
    return max(timeout_s, min(PROGRESS_EXTENDS * timeout_s, PROGRESS_EXTENDS_TO_S))


class TargetMatch:
    """The target of a connection, compared with targets that are resolved later."""

    def __init__(self, target: Target, moved_after_s: float = MOVED_AFTER_S) -> None:
        self.target = target
        self._moved_after_s = moved_after_s
        self._confirmed_at = anyio.current_time()

    def matches(self, resolved: Target) -> bool:
        """Return whether the resolved target has the same settings and shares, or shared lately, an address."""
        ours = self.target
        if not (isinstance(ours, HttpTarget) and isinstance(resolved, HttpTarget)):
            return ours == resolved
        if replace(resolved, addresses=ours.addresses) != ours:
            return False
        if ours.addresses == resolved.addresses or set(ours.addresses) & set(resolved.addresses):
            self._confirmed_at = anyio.current_time()
        return anyio.current_time() < self._confirmed_at + self._moved_after_s


class Connection:
    """A session that stays open while calls use it, and `limits.idle_s` longer.

    `in_flight` counts its calls. `last_used` is the end of the last one, by the event loop's clock.
    """

    def __init__(
        self,
        server_id: str,
        target: Target,
        limits: CallLimits,
        slot: ResultSlot,
        protocol_version: str | None,
        hooks: SessionHooks,
        tools: SessionTools,
    ) -> None:
        """`slot` is for messages on a stream that calls share; `tools` are those of this session."""
        self.tools = tools
        self._hooks = hooks
        self.in_flight = 0
        self.last_used = self._last_message_at = anyio.current_time()
        self._target_match = TargetMatch(target)
        self._limits = limits
        self._open_within_s = limits.timeout_s
        if isinstance(target, StdioTarget):
            self._open_within_s = max(limits.timeout_s, limits.start_timeout_s)
        # a server of the handshake era can take ten seconds to answer the newer version probe
        self._mode = HANDSHAKE if protocol_version in HANDSHAKE_PROTOCOL_VERSIONS else PROBE
        self._slots = MessageSlots(slot)
        self._allowance = Allowance()
        self._mask = Mask(credentials_of(target))
        self._credentials = credentials_of(target)
        self._state = SessionState(
            server_id,
            anyio.CancelScope(deadline=anyio.current_time() + self._open_within_s),
            secrets_of(target),
            may_hold_large=self._slots.try_acquire,
            allowance=self._allowance,
            login=target.tokens.login if isinstance(target, HttpTarget) and target.tokens else "",
            on_token=self._hide,
        )
        self._methods: dict[str | int, str] = {}  # of the requests that have no answer yet
        self._client: Client | None = None  # while the session is open
        self._was_opened = False
        self._opened_at = float("inf")
        self._error: ServerError | None = None
        self._settled = anyio.Event()  # the session is open, or failed
        self._ended = anyio.Event()
        self._takes_calls = True
        self._drained = anyio.Event()  # no call is in flight, and no more are taken
        self._calls: list[CallExchange] = []
        self.was_called = False
        self._idle_s = limits.idle_s
        self._last_owner: str | None = None
        self._has_several_owners = False

    def _hide(self, _: str) -> None:
        """Mask the access tokens of this session too, in what the server sends from now on."""
        self._mask = Mask(sorted({*self._credentials, *self._state.tokens}, key=len, reverse=True))

    @property
    def accepts_calls(self) -> bool:
        """Return whether a call may use this connection, or wait until it is open."""
        return self._takes_calls and not self._drained.is_set() and not self._ended.is_set()

    @property
    def may_have_state(self) -> bool:
        """Return whether the server may keep state for this session; over HTTP without a session id, it cannot."""
        is_by_id = isinstance(self._target_match.target, HttpTarget) and not self._state.is_sse
        return self._state.session_id is not None or not is_by_id

    @property
    def has_session_id(self) -> bool:
        """Return whether an HTTP server of the handshake era has assigned a session to this connection."""
        is_older = self._client is not None and self._client.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS
        return is_older and (self._state.session_id is not None or self._state.is_sse)

    @property
    def was_opened(self) -> bool:
        """Return whether the session is, or was, open."""
        return self._was_opened

    @property
    def violation(self) -> str | None:
        """Return what the server wrote in place of messages since its last answer."""
        return self._state.protocol_violation

    @property
    def lacks_credentials(self) -> bool:
        """Return whether the session cannot be opened with the tokens of one caller; those of another may serve."""
        target = self._target_match.target
        is_of_tokens = self._state.has_token_error or isinstance(self._error, ServerAuthRequired)
        return is_of_tokens and isinstance(target, HttpTarget) and target.is_shareable

    @property
    def can_be_continued(self) -> bool:
        """Return whether the session outlives this connection, since another one can continue it."""
        return self._hooks.kept is not None and self._hooks.kept.is_kept

    @property
    def waits_for_slot(self) -> bool:
        """Return whether a large message waits for a slot and delays those after it."""
        return self._slots.own.is_waiting

    def is_for(self, target: Target) -> bool:
        """Return whether this connection still leads to a newly resolved target."""
        return self._target_match.matches(target)

    def give_to(self, target: Target) -> None:
        """Let the connection lead to the target of one owner from now on."""
        self._target_match = TargetMatch(target)

    def retire(self) -> None:
        """Accept no more calls, and end the session after the last one."""
        if self._hooks.kept and self._state.ends_session:
            self._hooks.kept.give_up()
        self._stop_taking_calls()

    def suspend(self) -> None:
        """Accept no more calls, and close after the last one; another connection may continue the session."""
        self._state.ends_session = self._state.ends_session and not self.can_be_continued
        self._stop_taking_calls()

    def _stop_taking_calls(self) -> None:
        self._takes_calls = False
        if self.in_flight == 0:
            self._drained.set()

    def abort(self) -> None:
        """End the session and its calls at once."""
        self._state.scope.cancel()

    def is_silent_since(self, moment: float) -> bool:
        """Return whether the session is not open yet, or received no message since this moment."""
        return not self._settled.is_set() or self._last_message_at < moment

    def retire_if_silent_since(self, moment: float) -> None:
        """Retire an open connection that received no message since this moment of the event loop's clock."""
        # a child that still starts may install packages, so no second one may start
        if self._settled.is_set() and self._last_message_at < moment:
            self.retire()

    async def run(self) -> None:
        """Keep the session open until it is retired, is idle for too long, or breaks."""
        error: ServerError | None = None
        try:
            with self._state.scope:
                await self._stay()
            if self._state.scope.cancelled_caught:
                reason = self._state.protocol_violation or f"no connection within {self._open_within_s:g} s"
                error = self._reason(ServerTimeout(self._state.server_id, reason))
        except FOREIGN_ERRORS as foreign:
            error = self._reason(to_server_error(self._state, foreign))
        finally:
            self._slots.own.close()  # of a message that broke off
            self._client, self._error = None, error
            self._settled.set()
            self._ended.set()
        if self._state.error and self._hooks.kept:
            self._hooks.kept.give_up()  # the next one would end in the same way

    @property
    def is_settled(self) -> bool:
        """Return whether the session is open, or cannot be opened."""
        return self._settled.is_set()

    async def settled(self) -> None:
        """Return once the session is open, or cannot be opened."""
        await self._settled.wait()

    async def opened(self) -> None:
        """Return once the session is open.

        Raises:
            ServerError: it cannot be opened, or has ended.
        """
        await self._settled.wait()
        if self._client is None:
            raise self._error or self._broke()

    @property
    def client(self) -> Client:
        """Return the client of a session that is open."""
        assert self._client
        return self._client

    def runs(self, target: Target) -> bool:
        """Return whether this is a process of the same entry, for whatever caller or project."""
        ours = self._target_match.target
        if not (isinstance(ours, StdioTarget) and isinstance(target, StdioTarget)):
            return False
        return replace(ours.entry or ours, owner="") == replace(target.entry or target, owner="")

    @contextmanager
    def listing(self) -> Generator[None]:
        """Keep the session open for the block, then for the calls that follow; a failed one that no call has used ends.

        Listings do not keep a session open that calls no longer use.
        """
        self.in_flight += 1
        self._idle_s = self._limits.idle_s if self.was_called else min(self._limits.idle_s, LISTED_IDLE_S)
        is_complete = False
        try:
            yield
            is_complete = True
        finally:
            self.in_flight -= 1
            if not self.was_called:
                self.last_used = anyio.current_time()
                if not is_complete and self.in_flight == 0:
                    self.abort()
            if not self._takes_calls:
                self._stop_taking_calls()

    async def tools_page(self, cursor: str | None) -> dict[str, Any]:
        """Return a page of the server's tools as it sent it: validating it as a whole would reject all for one.

        Raises:
            MCPError: the answer is an error.
            ServerError: the connection broke.
        """
        session: Any = self.client.session  # there is no public way
        request = ListToolsRequest(params=PaginatedRequestParams(cursor=cursor))
        data, options = request.model_dump(by_alias=True, mode="json", exclude_none=True), dict[str, Any]()
        session._stamp(data, options)
        token = _is_as_sent.set(True)
        try:
            page = await session._dispatcher.send_raw_request("tools/list", data.get("params"), options)
        except MCPError as error:
            if not is_connection_lost(error):
                raise
            with anyio.move_on_after(_LAST_WORDS_S):
                await self._ended.wait()
            raise (self._state.error or to_answer_error(self._state, error, self._state)) from error
        finally:
            _is_as_sent.reset(token)
        return cast("dict[str, Any]", page)

    def describe(self, state: SessionState) -> None:
        """Let another state have what this one observed of the child."""
        ours = self._state
        state.error, state.protocol_violation, state.hint = ours.error, ours.protocol_violation, ours.hint
        state.stderr, state.exit_code, state.was_stopped = ours.stderr, ours.exit_code, not self.was_called

    async def tool_named(self, name: str) -> ToolDefinition | None:
        """Return the tool of this name that the server has in this session since it announced a change.

        Raises:
            ServerError: the list fails.
        """
        # callers who share a connection, and no more, may have different tools
        if self._client is None or not self.tools.have_changed or self._state.is_shared:
            return None
        exchange = HttpExchange()
        token = current_exchange.set(exchange)
        try:
            return await self.tools.named(name, self._client)
        except (MCPError, TimeoutError, ValueError) as error:
            if isinstance(error, MCPError) and await self._is_lost(error, exchange):
                self._lose_session()
                return None  # the call opens another session
            reason = (
                f"is an error: {answered(self._state, error)}"
                if isinstance(error, MCPError)
                else "is invalid, too large or slow"
            )
            failed = ServerFailed(self._state.server_id, f"its list of tools in this session {reason}")
            raise failed.with_delivery(Delivery.NOT_SENT) from error
        finally:
            current_exchange.reset(token)

    async def call(
        self, send: Send[ResultT], target: Target, resources: CallResources, deadline: CallDeadline
    ) -> ResultT:
        """Send one call and return its result; a large result waits for the slot of `resources`.

        `target` is that of the caller, whose tokens the requests of the call carry.

        Raises:
            NothingSent: the connection was dead before the call was sent, or the server has lost the session.
            ServerError: no connection, it broke, or the server returned an error or an invalid result. Its `delivery`
                is that of this call.
        """
        # a message to a child counts as sent: a pipe does not acknowledge it
        exchange = CallExchange(
            sent=not isinstance(target, HttpTarget),
            tokens=target.tokens if isinstance(target, HttpTarget) else None,
            slot=resources.slot,
            dialogue=resources.dialogue,
            deadline=deadline,
            is_repeatable=resources.is_repeatable,
        )

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            deadline.progressed()
            await resources.progress(progress, total, message)

        self._has_several_owners |= self._last_owner not in (None, resources.session)
        self._last_owner = resources.session
        was_open = self._client is not None and self.accepts_calls and self._opened_at < deadline.connecting_since
        self.in_flight += 1
        self._calls.append(exchange)
        self.was_called, self._state.closing_s, self._idle_s = True, CALLED_CLOSING_S, self._limits.idle_s
        # requests and responses from here on are those of this call; the SDK copies the context of the sender
        token = current_exchange.set(exchange)
        try:
            await self._settled.wait()
            deadline.connected()
            if self._client is None or self._drained.is_set():
                if self._was_opened or self._error is None:
                    raise NothingSent
                raise self._error.with_delivery(Delivery.NOT_SENT)
            result = await send(self._client, on_progress)
            if self._hooks.kept:
                self._hooks.kept.used()
            return result
        except MCPError as error:
            raise await self._call_error(error, exchange, was_open=was_open) from error
        except ValidationError as error:
            reason = f"{invalid_result(error)}; the request was carried out"
            raise ProtocolViolation(self._state.server_id, reason).with_delivery(Delivery.ANSWERED) from error
        finally:
            current_exchange.reset(token)
            self._calls = [other for other in self._calls if other is not exchange]
            self.in_flight -= 1
            self.last_used = anyio.current_time()
            if not self._takes_calls:
                self._stop_taking_calls()

    async def _stay(self) -> None:
        # no read timeout below the connection's lifetime: calls have their own deadlines, and an event stream may
        # be silent between two calls
        silence_s = LONGEST_TIMEOUT_S + self._limits.idle_s
        kept = self._hooks.kept
        self._state.continued = await kept.find() if kept else None
        mode = HANDSHAKE if self._state.continued else self._mode
        limits = self._limits.max_message_bytes, silence_s
        async with open_client(self._client_of, self._target_match.target, *limits, self._state, mode) as client:
            self._state.scope.deadline = float("inf")
            self._client, self._was_opened, self._opened_at = client, True, anyio.current_time()
            _let_ids_be_random(client)
            if (
                not self._state.continued
                and kept
                and self.has_session_id
                and self._state.session_id
                and client.session.initialize_result
            ):
                await kept.keep(self._state.session_id, client.session.initialize_result)
            self._hooks.opened(self)
            own = self._target_match.target
            is_shareable = isinstance(own, HttpTarget) and own.is_shareable and not own.owner
            self._state.is_shared = is_shareable and not self.has_session_id
            self._settled.set()
            # until it is retired and its calls have ended, or has been idle for too long
            while not self._drained.is_set():
                with anyio.move_on_after(min(self._idle_s, SIGN_IN_CHECKED_EVERY_S)):
                    await self._drained.wait()
                if await self._sign_in_has_ended():
                    self.suspend()
                if self.in_flight == 0 and anyio.current_time() >= self.last_used + self._idle_s:
                    self._drained.set()
            self._state.scope.deadline = anyio.current_time() + _FAREWELL_S
            if kept and self._state.ends_session:
                kept.give_up()
                self._state.ends_session = await kept.end()

    def _client_of(self, transport: AbstractAsyncContextManager[Streams], mode: str) -> Client:
        if self._takes_calls:
            self._drained = anyio.Event()  # the stream of another attempt may have ended
        return Client(
            self._observed(transport),
            mode=mode,
            cache=None,
            client_info=_US,
            elicitation_callback=self._on_elicitation,
            sampling_callback=self._on_sampling,
            list_roots_callback=self._on_list_roots,
        )

    async def _sign_in_has_ended(self) -> bool:
        """Return whether the caller has signed out, or in again, since the session began: another may not use it."""
        target = self._target_match.target
        if not isinstance(target, HttpTarget) or target.tokens is None or self._state.is_shared:
            return False
        try:
            return await target.tokens.have_ended()
        except SignInsUnavailable:
            return False

    @asynccontextmanager
    async def _observed(self, transport: AbstractAsyncContextManager[Streams]) -> AsyncGenerator[Streams]:
        """Yield the transport's streams; the session drains when the incoming stream ends."""
        async with transport as (incoming, outgoing):
            yield (
                _ObservedReceiveStream(incoming, self._on_received, self._drained.set),
                _ObservedSendStream(outgoing, self._on_sending, self._on_sent),
            )

    async def _on_received(self, item: SessionMessage | Exception, exchange: HttpExchange | None) -> None:
        """Mask a message where it enters, and count it; `exchange` is that whose response it came on, if it is known.

        Raises:
            ServerFlooded: too many requests of the server wait for their answers.
        """
        self._last_message_at = anyio.current_time()
        if isinstance(item, SessionMessage):
            match item.message:
                case JSONRPCRequest(method=method):
                    self._allowance.unanswered += 1
                    self._state.count(0, 0)
                    if method == "roots/list":
                        self._hooks.asks_for_roots(self)
                case JSONRPCNotification(method="notifications/tools/list_changed"):
                    self.tools.changed()
                    if self.was_called:  # the listing that opened the session has the tools
                        self._hooks.tools_changed()
                case JSONRPCResponse(id=request_id) | JSONRPCError(id=request_id) if request_id is not None:
                    self._allowance.end(request_id)
                case _:
                    pass
            item.message = await self._mask.message(item.message)
            if exchange and exchange.token and exchange.token not in self._state.tokens:  # many others came after it
                item.message = await Mask([exchange.token]).message(item.message)
            await self._on_answer(item.message)
        self._slots.on_received(item)

    async def _on_answer(self, message: JSONRPCMessage) -> None:
        """Mend the odd parts of a result, after it is masked: they are shown as JSON."""
        if not isinstance(message, JSONRPCResponse | JSONRPCError) or message.id is None:
            return
        method = self._methods.pop(message.id, "")
        if isinstance(message, JSONRPCResponse):
            version = self._client.protocol_version if self._client else LATEST_HANDSHAKE_VERSION
            message.result = await readable_result(self._state, method, version, message.result)

    def _on_sending(self, item: SessionMessage) -> None:
        self._slots.on_sent(item)
        match item.message:
            case JSONRPCRequest(id=request_id):
                self._allowance.begin(request_id)
                self._methods[request_id] = "" if _is_as_sent.get() else item.message.method
                _stamp(item, item.message)
                if exchange := current_exchange.get():
                    exchange.request_id = request_id
            case JSONRPCNotification(
                method="notifications/cancelled", params={"requestId": int() | str() as cancelled}
            ):
                self._allowance.end(cancelled)
                self._methods.pop(cancelled, None)
            case _:
                pass

    def _on_sent(self, item: SessionMessage) -> None:
        if isinstance(item.message, JSONRPCResponse | JSONRPCError):
            self._allowance.unanswered -= 1

    async def _on_elicitation(
        self,
        context: ClientRequestContext,  # noqa: ARG002  # the SDK's signature
        params: ElicitRequestParams,
    ) -> ElicitResult | ErrorData:
        return cast("ElicitResult | ErrorData", await self._asked(ElicitRequest(params=params)))

    async def _on_sampling(
        self,
        context: ClientRequestContext,  # noqa: ARG002  # the SDK's signature
        params: CreateMessageRequestParams,
    ) -> CreateMessageResult | CreateMessageResultWithTools | ErrorData:
        answer = await self._asked(CreateMessageRequest(params=params))
        return cast("CreateMessageResult | CreateMessageResultWithTools | ErrorData", answer)

    async def _on_list_roots(
        self,
        context: ClientRequestContext,  # noqa: ARG002  # the SDK's signature
    ) -> ListRootsResult | ErrorData:
        return cast("ListRootsResult | ErrorData", await self._asked(ListRootsRequest()))

    async def _asked(self, request: InputRequest) -> InputResponse | ErrorData:
        """Return the answer of the client whose call the server's request belongs to.

        Over HTTP the request came on the response of its call, and this runs in the context of that. Elsewhere nothing
        in it names a call, so it can belong to one only while no other is in flight; and once another caller shares the
        session, it may be a late one of a call that has ended.
        """
        own = [exchange for exchange in self._calls if exchange is current_exchange.get()]
        is_certain, own = bool(own), own or self._calls
        dialogues = [exchange.dialogue for exchange in own if exchange.dialogue]
        if len(own) != 1 or not dialogues or (self._has_several_owners and not is_certain):
            reason = f"{len(own)} calls are in flight, and any of them may have led to this request"
            if not own:
                reason = "no call is in flight"
            elif len(own) == 1:
                reason = "several callers use this session, and a call of any of them may have led to this request"
            for dialogue in dialogues:
                dialogue.refuse(request, reason)
            return ErrorData(code=INVALID_REQUEST, message=f"{request.method}: {reason}")
        self._allowance.unanswered -= 1  # a client that thinks is no flood of its server
        try:
            with own[0].deadline.waiting_for_client() if own[0].deadline else nullcontext():
                return await dialogues[0].ask(request, self._state.server_id)
        finally:
            self._allowance.unanswered += 1

    async def _call_error(
        self, error: MCPError, exchange: CallExchange, *, was_open: bool
    ) -> NothingSent | ServerError:
        """Return our error for one of the SDK: a lost connection, an HTTP failure, or the server's own error."""
        if exchange.error:
            return exchange.error.with_delivery(Delivery.NOT_SENT)
        is_old = was_open or self._state.continued is not None
        if is_old and await self._is_lost(error, exchange):
            self._lose_session()
            if exchange.is_repeatable or is_refused(exchange):
                return NothingSent()
            return self._answer_error(error, exchange).with_note(f"{SESSION_LOST}; the call {PERHAPS_CARRIED_OUT}")
        if is_connection_lost(error):
            with anyio.move_on_after(_LAST_WORDS_S):
                await self._ended.wait()
            if was_open and not exchange.sent:
                return NothingSent()
            broke = self._error or self._broke()
            return broke.with_delivery(_delivery_at_end(broke, exchange))
        return self._answer_error(error, exchange)

    def _answer_error(self, error: MCPError, exchange: CallExchange) -> ServerError:
        """Return our error for an HTTP failure, or for the server's own error."""
        status = exchange.http_status
        if status is not None and (status in _NOT_FROM_THE_TOOL or is_stand_in(error)):
            failure = to_answer_error(self._state, error, exchange)
            return failure.with_delivery(_delivery_of_status(status))
        failed = ServerFailed(self._state.server_id, error_answer(self._state, error, _QUOTED_CHARACTERS))
        failed.code, failed.data = error.code, error.error.data
        return failed.with_delivery(Delivery.ANSWERED)

    async def _is_lost(self, error: MCPError, exchange: HttpExchange) -> bool:
        """Return whether the server has lost our session, such as by a restart."""
        has_session = self._client is None or self._client.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS
        if has_session and exchange.http_status == HTTPStatus.NOT_FOUND:
            return True
        if self._client is None or not self.has_session_id or not may_be_lost(error, exchange):
            return False
        # the words may be those of a tool, and the status that of an overload: a ping needs nothing but the session
        ping = HttpExchange()
        token = current_exchange.set(ping)
        try:
            with anyio.move_on_after(_PING_S):
                await self._client.session.send_ping()
        except MCPError as refused:
            return ping.http_status not in (None, HTTPStatus.TOO_MANY_REQUESTS) or names_lost_session(refused, ping)
        finally:
            current_exchange.reset(token)
        return False

    def _lose_session(self) -> None:
        self.retire()
        self._state.ends_session = False  # there is none

    def _reason(self, of_opening: ServerError | None) -> ServerError:
        """Return the error for interrupted calls: why the session never opened, or that it broke."""
        if self._was_opened or of_opening is None:
            return self._state.error or self._broke()
        return self._state.error or of_opening

    def _broke(self) -> ServerError:
        broke = ServerUnreachable(self._state.server_id, "the connection broke during the call")
        broke.in_mid_call = True
        return broke


def _delivery_at_end(error: ServerError, exchange: HttpExchange) -> Delivery:
    """Return the delivery of a call whose connection ended; a rejected answer is an answer."""
    if not exchange.sent:
        return Delivery.NOT_SENT
    if exchange.http_status is not None:
        return _delivery_of_status(exchange.http_status)
    return Delivery.UNKNOWN if isinstance(error, _WITHOUT_ANSWER) else Delivery.ANSWERED


def _delivery_of_status(status: int) -> Delivery:
    """Return the delivery of a call that got this error status, and no answer of the tool."""
    return Delivery.NOT_SENT if status in _REJECTED or status in _NO_SERVER else Delivery.UNKNOWN


def _stamp(item: SessionMessage, request: JSONRPCRequest) -> None:
    """Let a request carry what the caller's client can be asked, not what the SDK's client can, and its headers.

    Runs in the context of the call that sends the request. At the handshake no caller is known: a server may then ask
    for all that can be relayed.
    """
    params = request.params or {}
    if request.method == "initialize":
        params["capabilities"]["roots"] = {}  # the SDK's client would announce changes of them
    meta: dict[str, Any] = params.get("_meta") or {}
    if CLIENT_CAPABILITIES_META_KEY not in meta:
        return
    exchange = current_exchange.get()
    call = exchange if isinstance(exchange, CallExchange) else None
    capabilities = call.dialogue.capabilities if call and call.dialogue else None
    meta[CLIENT_CAPABILITIES_META_KEY] = _dumped(capabilities)
    if call and isinstance(item.metadata, ClientMessageMetadata) and item.metadata.headers is not None:
        item.metadata.headers |= call.headers


def _dumped(capabilities: ClientCapabilities | None) -> dict[str, Any]:
    return capabilities.model_dump(by_alias=True, mode="json", exclude_none=True) if capabilities else {}


class _RandomId(int):
    """The id of a request, whose successor is any other number."""

    @override
    def __add__(self, _: int) -> _RandomId:
        return _RandomId(secrets.randbelow(_HIGHEST_ID))


def _let_ids_be_random(client: Client) -> None:
    """Let no id of a request be foreseen: a server could answer the next caller's request before it is sent.

    Another replica may use the session too, and servers compare ids.
    """
    dispatcher: Any = client.session._dispatcher  # pyright: ignore[reportPrivateUsage]  # there is no public way
    dispatcher._next_id = _RandomId()


class _ObservedReceiveStream(ObjectReceiveStream[Any]):
    """Awaits `on_message` with each incoming item and its exchange, and calls `on_end` when the stream ends."""

    def __init__(
        self,
        stream: Any,
        on_message: Callable[[Any, HttpExchange | None], Awaitable[None]],
        on_end: Callable[[], None],
    ) -> None:
        self._stream = stream
        self._on_message = on_message
        self._on_end = on_end

    @property
    def last_context(self) -> Context | None:
        """Return the context that the last item was sent in: over HTTP, that of the call whose response it came on."""
        return getattr(self._stream, "last_context", None)

    @override
    async def receive(self) -> Any:
        try:
            item = await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._on_end()
            raise
        # over HTTP alone, that of the request whose response the item came on
        exchange = self.last_context.get(current_exchange) if self.last_context else None
        await self._on_message(item, exchange)
        return item

    @override
    async def aclose(self) -> None:
        await self._stream.aclose()


class _ObservedSendStream(ObjectSendStream[Any]):
    """Calls `on_message` with each outgoing item, in the sender's context, and `on_sent` once it was taken."""

    def __init__(self, stream: Any, on_message: Callable[[Any], None], on_sent: Callable[[Any], None]) -> None:
        self._stream = stream
        self._on_message = on_message
        self._on_sent = on_sent

    @override
    async def send(self, item: Any) -> None:
        self._on_message(item)
        await self._stream.send(item)
        self._on_sent(item)

    @override
    async def aclose(self) -> None:
        await self._stream.aclose()
