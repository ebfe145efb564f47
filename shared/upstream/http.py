"""A server behind a URL, with checked addresses and a limit on the size of bodies."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import anyio
import httpx2
import structlog
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client
from pydantic_core import from_json

from shared.errors import AddressForbidden, ProtocolViolation, ServerError, ServerFailed, ToolscaleError
from shared.upstream.auth import Challenge
from shared.upstream.hosts import Hosts, ResolvedHost, is_loopback
from shared.upstream.messages import MAX_MESSAGE_NODES, BodyMeter, EventMeter
from shared.upstream.older_sse import older_sse
from shared.upstream.reader import Reader, RequestId
from shared.upstream.session import (
    HttpExchange,
    SessionState,
    current_exchange,
    message_too_dense,
    message_too_large,
)
from shared.upstream.target import HttpTarget
from shared.validation import checked_url

if TYPE_CHECKING:
    import ssl

    from mcp.client._transport import TransportStreams as Streams

    from shared.upstream.tokens import AccessTokens

_log = structlog.get_logger()

_CONNECT_S = 5.0
_NOTIFICATION_S = 5.0
_NOTIFICATION_BYTES = 4 << 10
_WORDS_BYTES = 4 << 10
_WORDS_S = 2.0
# The first event of a stream of the older transport.
_ENDPOINT = re.compile(rb"(?:(?::|id:|retry:)[^\n]*\n|\s)*+event: ?endpoint\b")
# Many servers close an idle connection after five seconds; one that is used again just then breaks the call.
_LIMITS = httpx2.Limits(keepalive_expiry=3.0)
_EVENT_END = re.compile(rb"(?:\r\n|\r(?!\n)|\n)(?:\r\n|\r|\n)")
_BOM = b"\xef\xbb\xbf"
_CHALLENGES = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_CHALLENGE_CHARACTERS = 4_000
NOT_CONNECTED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError)
"""Errors after which the server has received nothing."""


def http_transport(
    target: HttpTarget, max_message_bytes: int, timeout_s: float, state: SessionState
) -> AbstractAsyncContextManager[Streams]:
    """Return the transport for this target, over a guarded HTTP client.

    `max_message_bytes` limits a body, or an event of an event stream. The caller's deadline limits the session.
    """
    timeout = httpx2.Timeout(timeout_s, connect=min(_CONNECT_S, timeout_s / 2))
    client = guarded_client(target, max_message_bytes, timeout, state)
    if target.transport == "sse":
        return older_sse(httpx2.URL(target.url), client, max_message_bytes, state)
    return _streamable(target, client, max_message_bytes)


def guarded_client(
    target: HttpTarget,
    max_bytes: int,
    timeout: httpx2.Timeout | float,
    state: SessionState,
    *,
    returns_redirects: bool = False,
) -> httpx2.AsyncClient:
    """Return a client that connects only where the target is, with its headers and tokens, and checks each response.

    A redirect is an error, or with `returns_redirects` a response; it is never followed.
    """
    guard = GuardedHttpTransport(target, max_bytes, state, returns_redirects=returns_redirects)
    auth = _TokenAuth(target.tokens, state) if target.tokens else None
    headers = {**target.headers, "accept-encoding": "identity"}
    return httpx2.AsyncClient(transport=guard, headers=headers, timeout=timeout, auth=auth, trust_env=False)


def proxy_for(target: HttpTarget) -> str | None:
    """Return the proxy for this target by `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, or None.

    `NO_PROXY` may list names with their subdomains, addresses and networks. Loopback never has a proxy.
    """
    parts = urlsplit(target.url)
    host, proxies = parts.hostname or "", getproxies_environment()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or is_loopback(host) or proxy_bypass(host):
        return None
    with suppress(ValueError):  # the operator's server has a name, which the proxy resolves
        known = tuple(map(ipaddress.ip_address, target.addresses or (host,)))
        excepted = Hosts([entry.strip() for entry in proxies.get("no", "").split(",")])
        if excepted.contains(ResolvedHost(host, known, parts.scheme, parts.port or 0)):
            return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    try:
        checked_url(proxy, "http", "https")  # the client quotes what it cannot read, such as a part of a password
    except ValueError as error:
        raise httpx2.UnsupportedProtocol(f"the proxy in HTTP_PROXY, HTTPS_PROXY or ALL_PROXY: {error}") from None
    return proxy


@asynccontextmanager
async def _streamable(target: HttpTarget, client: httpx2.AsyncClient, max_event_bytes: int) -> AsyncGenerator[Streams]:
    async with (
        client,
        streamable_http_client(target.url, http_client=client, max_sse_event_size=max_event_bytes) as streams,
    ):
        yield streams


class _TokenAuth(httpx2.Auth):
    """Adds the access token to each request, and repeats one that the server refuses if there is another token.

    The tokens are those of the call that the request belongs to; outside a call, those of the connection.
    """

    def __init__(self, tokens: AccessTokens, state: SessionState) -> None:
        self._tokens, self._state = tokens, state

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        exchange = current_exchange.get()
        tokens = exchange.tokens if exchange and exchange.tokens else None if self._state.is_shared else self._tokens
        if tokens is None:
            yield request
            return
        token = self._added(request, await self._answer(tokens.current()))
        response = yield request
        if response.status_code == HTTPStatus.UNAUTHORIZED:
            challenge = _challenge(response)
            if self._added(request, await self._answer(tokens.after_refusal(token, challenge))):
                yield request
            elif not challenge.header and await tokens.are_offered():
                self._state.note_status(challenge.status, Challenge(challenge.status, "Bearer"))

    async def _answer(self, tokens: Awaitable[str | None]) -> str | None:
        """Return the token; an error is that of the call alone, since others may use the connection."""
        try:
            return await tokens
        except ToolscaleError as error:
            failed = error if isinstance(error, ServerError) else ServerFailed(self._state.server_id, str(error))
            exchange = current_exchange.get()
            if exchange is None or exchange.tokens is None:
                self._state.has_token_error = True
                raise self._state.fail(failed) from error
            exchange.error = failed
            return None

    def _added(self, request: httpx2.Request, token: str | None) -> str | None:
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
            self._state.hide(token)
            if exchange := current_exchange.get():
                exchange.token = token
        return token


class GuardedHttpTransport(httpx2.AsyncBaseTransport):
    """An HTTP transport that connects only to the target's origin and addresses, and checks every response.

    A proxy is asked for the checked addresses too, not for the name. Compressed bodies are rejected, and redirects
    unless the client returns them.
    """

    def __init__(
        self, target: HttpTarget, max_bytes: int, state: SessionState, *, returns_redirects: bool = False
    ) -> None:
        self._inner = httpx2.AsyncHTTPTransport(
            verify=tls_context(), trust_env=False, proxy=proxy_for(target), limits=_LIMITS
        )
        self._origin = _origin(httpx2.URL(target.url))
        self._addresses: tuple[str | None, ...] = target.addresses or (None,)
        self._has_own_session = bool(target.owner) or target.transport == "sse"
        self._is_older = target.transport == "sse"  # its messages are read where they are delivered
        self._max_bytes = max_bytes
        self._state = state
        self._reader = Reader(state)
        self._returns_redirects = returns_redirects
        self._is_open = False  # a session that is continued

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request to one of the target's addresses.

        Raises:
            ServerError: the request has another origin, or the response is rejected.
            httpx2.HTTPError: the exchange failed.
        """
        if _origin(request.url) != self._origin:
            raise self._state.fail(AddressForbidden(self._state.server_id, "sends us on to another origin"))
        if known := self._answered_here(request):
            return known
        if self._state.recorder:
            self._state.recorder.sending(request)
        response = await (self._send(request) if _awaits_an_answer(request) else self._send_aside(request))
        try:
            self._check_response(response)
            await self._note_response(request, response)
        except BaseException:
            await response.aclose()
            raise
        headers = httpx2.Headers(response.headers)
        if "content-type" in headers:  # JSON and event streams are UTF-8, as the meters assume
            headers["content-type"] = headers["content-type"].partition(";")[0]
        if "set-cookie" in headers and self._state.session_id is None and not self._has_own_session:
            del headers["set-cookie"]  # callers may share the connection, and must not share a session of cookies
        body = self._capped(request, response)
        body = self._state.recorder.noting(request, response, body) if self._state.recorder else body
        headers.pop("content-length", None)  # of the body before it is repaired
        return httpx2.Response(
            response.status_code,
            headers=headers,
            stream=self._readable(request, response, body),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._inner.aclose()

    def _answered_here(self, request: httpx2.Request) -> httpx2.Response | None:
        """Return the response to a request that is not sent.

        An open session does not need its handshake, or its end. Without a token, a call would have no identity.
        """
        state, exchange = self._state, current_exchange.get()
        if exchange and exchange.error:
            return httpx2.Response(HTTPStatus.SERVICE_UNAVAILABLE, request=request)
        if request.method == "DELETE" and not state.ends_session:
            return httpx2.Response(HTTPStatus.NO_CONTENT, request=request)
        if request.method != "POST" or state.continued is None or self._is_open:
            return None
        message: dict[str, object] = json.loads(request.content)
        if message.get("method") == "initialize":
            state.session_id = state.continued.session_id
            answer = {"jsonrpc": "2.0", "id": message["id"], "result": state.continued.initialized}
            return httpx2.Response(
                HTTPStatus.OK, headers={MCP_SESSION_ID: state.session_id}, json=answer, request=request
            )
        self._is_open = True  # with `notifications/initialized`
        return httpx2.Response(HTTPStatus.ACCEPTED, request=request)

    async def _note_response(self, request: httpx2.Request, response: httpx2.Response) -> None:
        """Keep what the session and its errors need of a response."""
        state, status = self._state, response.status_code
        is_page = response.headers.get("content-type", "").lower().startswith("text/html")
        words = await _words(response) if status >= HTTPStatus.BAD_REQUEST or is_page else ""
        challenge = _challenge(response) if status in _CHALLENGES else None
        if request.method == "POST":
            state.note_status(status if status >= HTTPStatus.BAD_REQUEST else None, challenge, words)
            if state.session_id is None and MCP_SESSION_ID in response.headers and _is_handshake(request):
                state.session_id = response.headers[MCP_SESSION_ID]
        if request.method == "GET":
            state.words, state.challenge = words, challenge or state.challenge
            state.stream_answered(status)

    async def _send_aside(self, request: httpx2.Request) -> httpx2.Response:
        """Send a notification or an answer with a short timeout, since the SDK sends nothing until it returns."""
        with anyio.move_on_after(_NOTIFICATION_S):
            return await self._send(request)
        return httpx2.Response(HTTPStatus.ACCEPTED, stream=httpx2.ByteStream(b""))

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        *others, last = self._addresses
        for address in others:
            try:
                return await self._send_to(request, address)
            except NOT_CONNECTED:
                self._addresses = tuple(other for other in self._addresses if other != address)
        return await self._send_to(request, last)

    async def _send_to(self, request: httpx2.Request, address: str | None) -> httpx2.Response:
        if address is not None:
            request = httpx2.Request(
                request.method,
                request.url.copy_with(host=address),
                headers=request.headers,  # the Host header keeps the name
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": request.url.host},
            )
        exchange = current_exchange.get() or HttpExchange()
        was_sent, exchange.sent = exchange.sent, True
        try:
            response = await self._inner.handle_async_request(request)
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _OneResponse(response.stream, self._state.server_id)
            return response
        except NOT_CONNECTED:
            exchange.sent = was_sent
            raise

    def _check_response(self, response: httpx2.Response) -> None:
        state = self._state
        if response.has_redirect_location and not self._returns_redirects:
            goal = state.quote(response.headers["location"].partition("?")[0].rpartition("@")[2])
            raise state.fail(ProtocolViolation(state.server_id, f"redirects to {goal}, which is not followed"))
        if response.headers.get("content-encoding", "identity") != "identity":
            raise state.fail(ProtocolViolation(state.server_id, "sends a compressed body, unasked"))
        if int(response.headers.get("content-length", 0)) > self._max_bytes:
            raise state.fail(message_too_large(state, self._max_bytes))

    def _capped(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.AsyncByteStream:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        is_event_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        kinds = {"is_event_stream": is_event_stream, "is_of_post": request.method == "POST"}
        body = _CappedBody(response.stream, self._max_bytes, self._state, **kinds)
        return _OwnStream(body, self._state) if request.method == "GET" else body

    def _readable(
        self, request: httpx2.Request, response: httpx2.Response, body: httpx2.AsyncByteStream
    ) -> httpx2.AsyncByteStream:
        """Return a body of JSON-RPC as any parser can read it, and another one as it is."""
        kind = response.headers.get("content-type", "").lower()
        request_id = _request_id(request)
        is_resumed = "last-event-id" in request.headers  # with the answer to an earlier request
        if self._is_older or is_resumed or (request.method == "POST" and request_id is None):
            return body
        is_error = response.status_code >= HTTPStatus.BAD_REQUEST  # whose body may be that of a proxy

        def rewritten(text: bytes) -> list[bytes]:
            is_other = is_error and b'"jsonrpc"' not in text
            return [text] if is_other else self._reader.rewritten(text, request_id)

        if kind.startswith("text/event-stream"):
            return _ReadableEvents(body, rewritten)
        return (
            _ReadableBody(body, rewritten) if kind.startswith("application/json") and request_id is not None else body
        )


class _CappedBody(httpx2.AsyncByteStream):
    """A body that fails once it, or one event of an event stream, exceeds the limit."""

    def __init__(
        self,
        body: httpx2.AsyncByteStream,
        max_bytes: int,
        state: SessionState,
        *,
        is_event_stream: bool,
        is_of_post: bool,
    ) -> None:
        self._body = body
        self._max_bytes = max_bytes
        self._state = state
        self._is_of_post = is_of_post
        self._meter = EventMeter() if is_event_stream else BodyMeter()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        events = 0
        async for chunk in self._body:
            size_bytes = self._meter.add(chunk)
            if self._is_of_post and not events and _ENDPOINT.match(chunk):
                self._state.is_sse = True  # it opens the older stream for a POST too, and has no answer there
                return
            self._state.count(self._meter.events - events, len(chunk))
            events = self._meter.events
            if size_bytes > self._max_bytes:
                raise self._state.fail(message_too_large(self._state, self._max_bytes))
            if self._meter.nodes > MAX_MESSAGE_NODES:
                raise self._state.fail(message_too_dense(self._state))
            await self._state.received(len(chunk))
            await self._state.wait_for_slot(size_bytes, self._meter.nodes)
            yield chunk

    async def aclose(self) -> None:
        await self._body.aclose()


class _ReadableBody(httpx2.AsyncByteStream):
    """A body with one message, which `rewritten` repairs; of a batch, the answer to its request."""

    def __init__(self, body: httpx2.AsyncByteStream, rewritten: Callable[[bytes], list[bytes]]) -> None:
        self._body = body
        self._rewritten = rewritten

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._rewritten(b"".join([chunk async for chunk in self._body]))[-1]

    async def aclose(self) -> None:
        await self._body.aclose()


class _OneResponse(httpx2.AsyncByteStream):
    """A body after which a connection is used again only if nothing follows: that would answer the next request."""

    def __init__(self, body: httpx2.AsyncByteStream, server_id: str) -> None:
        self._body, self._server_id = body, server_id

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._body:
            yield chunk
        # the client has no public way to what it has received and not read
        connection: Any = self._body._httpcore_stream._stream._connection  # type: ignore[attr-defined]
        if connection._h11_state.trailing_data[0].strip():  # some servers end a body with a line end
            _log.warning("response_not_requested", server=self._server_id)
            await connection.aclose()

    async def aclose(self) -> None:
        await self._body.aclose()


class _ReadableEvents(_ReadableBody):
    """An event stream, whose messages `rewritten` repairs."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        rest, seen = bytearray(), 0
        async for chunk in self._body:
            rest += chunk
            # a "\r" at the end may be the first half of a line end
            while end := _EVENT_END.search(rest, seen, len(rest) - rest.endswith(b"\r")):
                yield self._event(bytes(rest[: end.end()]))
                del rest[: end.end()]
                seen = 0
            seen = max(0, len(rest) - 3)
        if rest:
            yield self._event(bytes(rest) + b"\n\n")

    def _event(self, event: bytes) -> bytes:
        """Return the event with its messages repaired: several events for a batch, and none for no message."""
        lines = event.removeprefix(_BOM).splitlines()
        data = b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
        others = [line for line in lines if line and not line.startswith(b"data")]
        if not data or any(line.startswith(b"event") and line[6:].strip() != b"message" for line in others):
            return event
        texts = self._rewritten(data)
        if texts == [data]:
            return event.removeprefix(_BOM)
        return b"".join(b"\n".join((*others, b"data: " + text, b"", b"")) for text in texts)


class _Read(httpx2.AsyncByteStream):
    """A body whose beginning has been read."""

    def __init__(self, begin: bytes, rest: AsyncIterator[bytes], body: httpx2.AsyncByteStream) -> None:
        self._begin, self._rest, self._body = begin, rest, body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._begin
        async for chunk in self._rest:
            yield chunk

    async def aclose(self) -> None:
        await self._body.aclose()


class _OwnStream(httpx2.AsyncByteStream):
    """The body with the stream of server messages; it reports its end to the session."""

    def __init__(self, body: httpx2.AsyncByteStream, state: SessionState) -> None:
        self._body = body
        self._state = state

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._body:
                yield chunk
        finally:
            self._state.stream_ended()

    async def aclose(self) -> None:
        await self._body.aclose()


async def _words(response: httpx2.Response) -> str:
    """Return the beginning of an error's body, which says what is wrong; the SDK reads it in one form only."""
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    body, rest = b"", response.stream.__aiter__()
    with anyio.move_on_after(_WORDS_S), suppress(httpx2.HTTPError):
        async for chunk in rest:
            body += chunk
            if len(body) >= _WORDS_BYTES:
                break
    response.stream = _Read(body, rest, response.stream)
    return body[:_WORDS_BYTES].decode("utf-8", "replace")


def _awaits_an_answer(request: httpx2.Request) -> bool:
    """Return whether the request may be other than a notification or an answer of JSON-RPC, which are small."""
    is_json = request.headers.get("content-type", "").startswith("application/json")
    if request.method != "POST" or not is_json or len(request.content) > _NOTIFICATION_BYTES:
        return True
    message: dict[str, object] = json.loads(request.content)
    return "jsonrpc" not in message or message.keys() >= {"id", "method"}


def _is_handshake(request: httpx2.Request) -> bool:
    message: dict[str, object] = json.loads(request.content)
    return message.get("method") == "initialize"


def _request_id(request: httpx2.Request) -> RequestId | None:
    """Return the id of a request of JSON-RPC, None for anything else."""
    if request.method != "POST" or not request.headers.get("content-type", "").startswith("application/json"):
        return None
    message: dict[str, Any] = from_json(request.content)
    return message["id"] if "jsonrpc" in message and message.keys() >= {"id", "method"} else None


def _challenge(response: httpx2.Response) -> Challenge:
    return Challenge(response.status_code, response.headers.get("www-authenticate", "")[:_CHALLENGE_CHARACTERS])


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


@cache
def tls_context() -> ssl.SSLContext:
    """Return the TLS context of the process, cached since reading the certificates is slow."""
    return httpx2.create_ssl_context()
