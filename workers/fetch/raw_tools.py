"""A transport that takes the raw tools out of a page before the SDK validates the page.

The SDK validates a page of tools as a whole, so one malformed tool would reject all others. The SDK gets the page
without its tools; each tool is validated separately.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, JSONRPCError, JSONRPCRequest, JSONRPCResponse

from shared.errors import ProtocolViolation
from shared.upstream.messages import parse_leniently
from shared.upstream.session import SessionState, to_server_error

if TYPE_CHECKING:
    from contextvars import Context
    from types import TracebackType

    from mcp.client._transport import ReadStream, WriteStream
    from mcp.client._transport import TransportStreams as Streams

Stream = TypeVar("Stream", bound="ReadStream[Any] | WriteStream[Any]")


class RawToolInterceptor:
    """A transport that keeps the raw tools of every page; `take_page` returns them."""

    def __init__(self, transport: AbstractAsyncContextManager[Streams], state: SessionState) -> None:
        self._transport = transport
        self._state = state
        self._stack = AsyncExitStack()
        self._methods: dict[str, str] = {}
        self._page: list[object] = []

    async def __aenter__(self) -> Streams:
        read, write = await self._stack.enter_async_context(self._transport)
        return _InterceptedReceiveStream(read, self), _InterceptedSendStream(write, self)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(exc_type, exc_val, exc_tb)

    def take_page(self) -> list[object]:
        """Return the raw tools of the last page, once."""
        page, self._page = self._page, []
        return page

    def sent(self, outgoing: SessionMessage) -> None:
        """Record the request, to recognise its response."""
        if isinstance(outgoing.message, JSONRPCRequest):
            self._methods[str(outgoing.message.id)] = outgoing.message.method

    def received(self, incoming: SessionMessage | Exception) -> SessionMessage | Exception:
        """Return the message for the session in place of this one."""
        if isinstance(incoming, Exception):
            self._fail(incoming)
        elif isinstance(incoming.message, JSONRPCResponse):
            return self._without_tools(incoming, incoming.message)
        elif isinstance(incoming.message, JSONRPCError):
            return self._parsed_leniently(incoming, incoming.message)
        return incoming

    def _parsed_leniently(self, incoming: SessionMessage, error: JSONRPCError) -> SessionMessage:
        """Return the page that the SDK could not parse, if a lenient parser can; else its error."""
        if error.error.code == PARSE_ERROR and self._methods.get(str(error.id)) == "tools/list":
            message = parse_leniently(self._state.last_event.text()) if self._state.last_event else None
            page = message.get("result") if message else None
            if isinstance(page, dict) and error.id is not None:
                response = JSONRPCResponse(jsonrpc="2.0", id=error.id, result=cast("dict[str, Any]", page))
                return self._without_tools(incoming, response)
        self._note_response(error.id)
        return incoming

    def _without_tools(self, incoming: SessionMessage, response: JSONRPCResponse) -> SessionMessage:
        tools = response.result.get("tools")
        if self._note_response(response.id) != "tools/list" or not isinstance(tools, list):
            return incoming
        self._page = cast("list[object]", tools)
        emptied = JSONRPCResponse(jsonrpc="2.0", id=response.id, result={**response.result, "tools": []})
        return SessionMessage(emptied, incoming.metadata)

    def _note_response(self, request_id: str | int | None) -> str | None:
        method = self._methods.get(str(request_id))
        wrong = f"answered a request that was never sent (id {self._state.quote(str(request_id))})"
        self._state.protocol_violation = None if method else wrong
        return method

    def _fail(self, error: Exception) -> None:
        # the SDK only logs an error of a stream, and continues to wait
        unreadable = ProtocolViolation(self._state.server_id, "sends what is not a JSON-RPC message")
        self._state.fail(to_server_error(self._state, error) or unreadable)


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
