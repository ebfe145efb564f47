"""One session that lists all tools of a server: connects, walks over the pages, and disconnects."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, cast

import anyio
from mcp import Client, MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    SERVER_INFO_META_KEY,
    Implementation,
    JSONRPCError,
    JSONRPCRequest,
    JSONRPCResponse,
    ListToolsResult,
    ServerCapabilities,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS

from shared.catalog import Listing
from shared.errors import ListingTooLarge, ProtocolViolation, ServerFailed
from shared.upstream.masking import Mask
from shared.upstream.odd_results import readable
from shared.upstream.opening import HANDSHAKE, PROBE, open_client
from shared.upstream.replay import Recorder, Recording, Repetition
from shared.upstream.session import FOREIGN_ERRORS, Allowance, SessionState, timeout_error, to_server_error
from shared.upstream.target import HttpTarget, StdioTarget, Target, credentials_of, secrets_of
from workers.fetch.definitions import MAX_NAMED, Limits, ListingBuilder
from workers.fetch.turns import FetchInterrupted, interruptible

if TYPE_CHECKING:
    from contextvars import Context
    from types import TracebackType

    from mcp.client._transport import ReadStream, WriteStream
    from mcp.client._transport import TransportStreams as Streams

# Slots are released, but a list of ten thousand new tools takes minutes to embed.
LONGEST_WAIT_S = 300.0

# A slower server would take nearly twice the time if its answers differ.
REPEATED_WITHIN_S = 3.0

_DECLARED_NAME_CHARACTERS = 200
_CLOSE_WITHIN_S = 2.0
_CLIENT_INFO = Implementation(name="toolscale", version="1")


class SharedSession(Protocol):
    """A session of calls, which lives in another event loop; within its block it is open."""

    mode: str
    protocol_version: str
    server_info: Implementation | None
    server_capabilities: ServerCapabilities

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None: ...

    async def list_tools(self, *, cursor: str | None) -> ListToolsResult:
        """Return a page without its tools, which `take_page` returns."""
        ...

    def take_page(self) -> list[object]:
        """Return the raw tools of the last page, once."""
        ...

    def describe(self, state: SessionState) -> None:
        """Let the state of a listing that timed out have what this session observed."""
        ...


Stream = TypeVar("Stream", bound="ReadStream[Any] | WriteStream[Any]")


def fetch_tools_blocking(
    server_id: str,
    target: Target,
    limits: Limits,
    try_acquire: Callable[[], bool] = lambda: True,
    wait_at_most_s: float = LONGEST_WAIT_S,
    end_turn: Callable[[], None] = lambda: None,
    mode: str = PROBE,
    recorder: Recorder | None = None,
    shared: SharedSession | None = None,
) -> Listing:
    """Return all tools that the server offers now, from a thread without an event loop; rejected ones have a reason.

    Never a partial list. Ends within the time of `limits`, plus two seconds for a child process that does not exit, or
    twelve if it has sent no message.
    A list that grows large waits until `try_acquire` returns True; this wait does not count.
    `end_turn` is called at the first message of a child process, or when its start takes longer than a listing may.
    `mode` is `PROBE`, or the mode that `connect_mode` returned for the server's last listing.
    `recorder` records an HTTP session. A `shared` session is asked in place of one of its own.

    Raises:
        ServerUnreachable: no connection, or it broke.
        ServerTimeout: no complete list within the time.
        ServerFailed: the server returned an error.
        ServerAuthRequired: the server requires other credentials.
        ProtocolViolation: the server violates the protocol.
        ListingTooLarge: the list exceeds a limit.
        AddressForbidden: the server redirected to an address that is not allowed.
        FetchInterrupted: `interrupt_fetches` was called, or no slot became free within `wait_at_most_s`.
    """
    wait = _SlotWait(try_acquire, wait_at_most_s)
    return anyio.run(_fetch, server_id, target, limits, wait, end_turn, mode, recorder, shared)


def answers_as_recorded(server_id: str, target: HttpTarget, limits: Limits, recording: Recording) -> bool:
    """Return whether the server answers the requests of this recording with the same bytes.

    Any error is another answer, and so is one that takes longer than REPEATED_WITHIN_S.

    Raises:
        FetchInterrupted: `interrupt_fetches` was called.
    """
    repetition = Repetition(recording, target, min(REPEATED_WITHIN_S, limits.timeout_s))
    with interruptible(repetition.stop):
        is_alike = repetition.is_answered_alike()
    if repetition.is_stopped:
        raise FetchInterrupted(f"{server_id}: interrupted, since this process ends")
    return is_alike


async def _fetch(
    server_id: str,
    target: Target,
    limits: Limits,
    wait: _SlotWait,
    end_turn: Callable[[], None],
    mode: str,
    recorder: Recorder | None,
    shared: SharedSession | None,
) -> Listing:
    time_s = max(limits.timeout_s, limits.start_timeout_s) if isinstance(target, StdioTarget) else limits.timeout_s
    process, scope = anyio.CancelScope(), anyio.CancelScope(deadline=anyio.current_time() + time_s)
    loop = asyncio.get_running_loop()
    loop.call_later(limits.timeout_s, end_turn)

    def on_started() -> None:
        scope.deadline = anyio.current_time() + limits.timeout_s
        end_turn()

    state = SessionState(
        server_id,
        scope,
        secrets_of(target),
        may_hold_large=partial(wait.is_over, process),
        on_started=on_started,
        allowance=_ListingAllowance(),
        recorder=recorder,
        login=target.tokens.login if isinstance(target, HttpTarget) and target.tokens else "",
    )
    listing: Listing | None = None
    with process, interruptible(lambda: loop.call_soon_threadsafe(process.cancel)):
        try:
            with scope:
                if shared:
                    async with shared:
                        state.note_start()
                        return await walk(shared, shared, limits, state)
                interceptor = RawToolInterceptor(state, credentials_of(target))
                async with open_client(
                    lambda transport, mode: Client(
                        interceptor.around(transport), mode=mode, cache=None, client_info=_CLIENT_INFO
                    ),
                    *(target, limits.max_message_bytes, limits.timeout_s, state, mode),
                ) as client:
                    listing = await walk(client, interceptor, limits, state)
                    # the list is complete: closing may be short
                    scope.deadline = min(scope.deadline, anyio.current_time() + _CLOSE_WITHIN_S)
        except FOREIGN_ERRORS as error:
            if listing is None:
                raise to_server_error(state, error) or error from error
        if listing is None:
            if shared:
                shared.describe(state)
            raise timeout_error(state, limits.timeout_s if state.is_started else time_s)
        return listing
    reason = "no slot for a large list became free" if wait.timed_out else "this process ends"
    raise FetchInterrupted(f"{server_id}: interrupted, since {reason}")


class _ListingAllowance(Allowance):
    """What a server may send during a listing: an installer may write thousands of lines before it."""

    AT_ONCE = 5_000.0
    BYTES = 256 << 10


class _SlotWait:
    """The wait of a large list for a slot, and its time limit."""

    def __init__(self, try_acquire: Callable[[], bool], at_most_s: float) -> None:
        self.timed_out = False
        self._try_acquire = try_acquire
        self._at_most_s = at_most_s
        self._began_s: float | None = None

    def is_over(self, scope: anyio.CancelScope) -> bool:
        """Return whether the list has a slot; cancel the scope when the wait took too long."""
        if self._try_acquire():
            self._began_s = None
            return True
        now = time.monotonic()
        self._began_s = now if self._began_s is None else self._began_s
        if now - self._began_s >= self._at_most_s:
            self.timed_out = True
            scope.cancel()
        return False


def connect_mode(listing: Listing) -> str:
    """Return the mode in which a server with such a list connects without a probe.

    A server of protocol 2026-07-28 is not asked for its name, so its pages have to contain it.
    """
    if listing.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
        return HANDSHAKE
    return listing.protocol_version if listing.names_server else PROBE


async def walk(
    client: Client | SharedSession, pages: RawToolInterceptor | SharedSession, limits: Limits, state: SessionState
) -> Listing:
    """Return the tools of all pages.

    Raises:
        ListingTooLarge: the pages, tools or bytes exceed a limit.
        ProtocolViolation: a cursor came twice, so the walk would not end; or the session had no probe, and no page
            names the server.
    """
    builder = ListingBuilder(state.server_id, client.protocol_version, limits)
    cursor, name = None, None
    seen: set[bytes] = set()
    for _ in range(limits.max_pages):
        page = await _next_page(client, cursor, state)
        cursor, name = page.next_cursor, name or _name_in(page, client)
        builder.add(pages.take_page())
        await state.wait_for_slot(builder.size_bytes, nodes=0)
        if not cursor:  # some servers end with an empty one
            break
        cursor_digest = hashlib.sha256(cursor.encode()).digest()  # a cursor may be as long as a message
        if cursor_digest in seen:
            raise ProtocolViolation(state.server_id, "gives the same cursor twice")
        seen.add(cursor_digest)
    else:
        raise ListingTooLarge(state.server_id, f"more than {limits.max_pages} pages of tools")
    # without a probe, the SDK invents capabilities without tools, and no name
    if name is None and client.mode not in (PROBE, HANDSHAKE):
        raise ProtocolViolation(state.server_id, "no longer names itself in its pages")
    probed = client.server_info.name if client.server_info else ""
    return Listing(
        declared_name=state.line(probed if name is None else name)[:_DECLARED_NAME_CHARACTERS],
        protocol_version=client.protocol_version,
        tools=tuple(builder.tools.values()),
        rejected=builder.rejected_summary(),
        marked=tuple(builder.marked[:MAX_NAMED]),
        names_server=name is not None,
    )


async def _next_page(client: Client | SharedSession, cursor: str | None, state: SessionState) -> ListToolsResult:
    try:
        return await client.list_tools(cursor=cursor)
    except MCPError as error:
        if error.code == METHOD_NOT_FOUND and cursor is None and client.server_capabilities.tools is None:
            return ListToolsResult(tools=[])  # its capabilities have no tools
        if error.code == INVALID_PARAMS and cursor is not None:
            # its list may have changed during the walk: a new walk may succeed
            raise ServerFailed(state.server_id, "no longer accepts the cursor that it gave") from error
        raise


def _name_in(page: ListToolsResult, client: Client | SharedSession) -> str | None:
    """Return the server's name in a page of a protocol that has it there."""
    about = (page.meta or {}).get(SERVER_INFO_META_KEY) if client.protocol_version in MODERN_PROTOCOL_VERSIONS else None
    name = cast("dict[str, object]", about).get("name") if isinstance(about, dict) else None
    return name if isinstance(name, str) and name else None


class RawToolInterceptor:
    """A transport that takes the raw tools out of a page before the SDK validates it; `take_page` returns them.

    The SDK validates a page of tools as a whole, so one malformed tool would reject all others. The SDK gets the page
    without its tools; each tool is validated separately.
    """

    def __init__(self, state: SessionState, credentials: Sequence[str] = ()) -> None:
        self._credentials = credentials
        self._state = state
        self._methods: dict[str, str] = {}
        self._page: list[object] = []

    @asynccontextmanager
    async def around(self, transport: AbstractAsyncContextManager[Streams]) -> AsyncGenerator[Streams]:
        """Yield the streams of a transport with this interceptor."""
        async with transport as (read, write):
            yield _InterceptedReceiveStream(read, self), _InterceptedSendStream(write, self)

    def take_page(self) -> list[object]:
        """Return the raw tools of the last page, once, without the credentials of the server."""
        page, self._page = self._page, []
        mask = Mask(sorted({*self._credentials, *self._state.tokens}, key=len, reverse=True))
        return list(map(mask.value, page))

    def sent(self, outgoing: SessionMessage) -> None:
        """Record the request, to recognise its response."""
        if isinstance(outgoing.message, JSONRPCRequest):
            self._methods[str(outgoing.message.id)] = outgoing.message.method
            if self._state.allowance:
                self._state.allowance.begin(outgoing.message.id)

    def received(self, incoming: SessionMessage | Exception) -> SessionMessage | Exception:
        """Return the message for the session in place of this one."""
        if isinstance(incoming, Exception):
            # the SDK only logs an error of a stream, and continues to wait
            unreadable = ProtocolViolation(self._state.server_id, "sends what is not a JSON-RPC message")
            self._state.fail(to_server_error(self._state, incoming) or unreadable)
        elif isinstance(incoming.message, JSONRPCResponse):
            return self._without_tools(incoming, incoming.message)
        elif isinstance(incoming.message, JSONRPCError):
            self._note_response(incoming.message.id)
        return incoming

    def _without_tools(self, incoming: SessionMessage, response: JSONRPCResponse) -> SessionMessage:
        method, tools = self._note_response(response.id), response.result.get("tools")
        if method == "initialize":
            response.result, _ = readable(method, LATEST_HANDSHAKE_VERSION, response.result, self._state.line)
        if method != "tools/list" or not isinstance(tools, list):
            return incoming
        self._page = cast("list[object]", tools)
        others = {key: part for key, part in response.result.items() if part is not None}
        emptied = JSONRPCResponse(jsonrpc="2.0", id=response.id, result={**others, "tools": []})
        return SessionMessage(emptied, incoming.metadata)

    def _note_response(self, request_id: str | int | None) -> str | None:
        method = self._methods.get(str(request_id))
        if self._state.allowance and request_id is not None:
            self._state.allowance.end(request_id)
        wrong = f"answered a request that was never sent (id {self._state.quote(str(request_id))})"
        self._state.protocol_violation = None if method else wrong
        return method


class _InterceptedStream(Generic[Stream]):
    """A stream of the transport behind the interceptor."""

    def __init__(self, inner: Stream, interceptor: RawToolInterceptor) -> None:
        self._inner = inner
        self._interceptor = interceptor

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(exc_type, exc_val, exc_tb)


class _InterceptedReceiveStream(_InterceptedStream["ReadStream[SessionMessage | Exception]"]):
    """The server's messages after the interceptor."""

    @property
    def last_context(self) -> Context | None:
        """The sender's context of the last message, where the transport keeps it."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        return self._interceptor.received(await self._inner.receive())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return self._interceptor.received(await self._inner.__anext__())


class _InterceptedSendStream(_InterceptedStream["WriteStream[SessionMessage]"]):
    """The client's messages, which the interceptor records before they are sent."""

    async def send(self, item: SessionMessage, /) -> None:
        self._interceptor.sent(item)
        await self._inner.send(item)
