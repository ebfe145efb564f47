"""The older SSE transport, of 2024-11-05: one stream has all messages of the server, and POSTs have ours.

The SDK's client of it waits without end for an endpoint that it rejects, stops to send after one failed POST, and
sends nothing while a server has not answered a POST.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

import anyio
import httpx2
from mcp.shared._context_streams import ContextReceiveStream, ContextSendStream, create_context_streams
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from shared.errors import AddressForbidden, ProtocolViolation
from shared.upstream.reader import Reader
from shared.upstream.session import SessionState, status_error, to_server_error

if TYPE_CHECKING:
    from anyio.abc import TaskGroup
    from httpx2 import ServerSentEvent
    from mcp.client._transport import TransportStreams as Streams

Incoming = SessionMessage | Exception

# A message may depend on the one before, but some servers answer a POST when its request is done.
_POST_S = 1.0
_ENDPOINT_S = 15.0
_EVENT_STREAM = "text/event-stream"


@asynccontextmanager
async def older_sse(
    url: httpx2.URL, client: httpx2.AsyncClient, max_event_bytes: int, state: SessionState
) -> AsyncGenerator[Streams]:
    """Yield the message streams of a session over the stream at this URL, once the server has named its endpoint.

    Raises:
        ServerError: there is no such stream, or its endpoint has another origin.
        httpx2.HTTPError: the connection failed.
    """
    headers = {"accept": _EVENT_STREAM, "cache-control": "no-store"}
    async with client, client.stream("GET", url, headers=headers) as response:
        if response.status_code >= HTTPStatus.BAD_REQUEST:
            raise status_error(state, response.status_code, state.challenge, body=state.words)
        if response.headers.get("content-type", "").strip().lower() != _EVENT_STREAM:
            raise ProtocolViolation(state.server_id, "answers without an event stream")
        events = aiter(httpx2.EventSource(response, max_event_size=max_event_bytes))
        endpoint = None
        with anyio.move_on_after(_ENDPOINT_S):
            endpoint = await _endpoint(url, events, state)
        if endpoint is None:
            raise ProtocolViolation(state.server_id, "opens an event stream that names no endpoint")
        into, incoming = create_context_streams[Incoming](0)
        outgoing, queued = create_context_streams[SessionMessage](0)
        async with into, incoming, outgoing, queued, anyio.create_task_group() as tasks:
            reader = Reader(state)
            tasks.start_soon(_receive, events, into, reader)
            tasks.start_soon(_send_all, client, endpoint, queued, tasks, state, reader)
            yield incoming, outgoing
            tasks.cancel_scope.cancel()


async def _endpoint(url: httpx2.URL, events: AsyncIterator[ServerSentEvent], state: SessionState) -> httpx2.URL | None:
    async for event in events:
        if event.event == "endpoint":
            state.is_sse = True
            endpoint = url.join(event.data.strip())
            if (endpoint.scheme, endpoint.host, endpoint.port) != (url.scheme, url.host, url.port):
                origin = state.quote(f"{endpoint.scheme}://{endpoint.netloc.decode()}")
                raise AddressForbidden(state.server_id, f"wants its messages at {origin}, which is not its own address")
            return endpoint
    return None


async def _receive(events: AsyncIterator[ServerSentEvent], into: ContextSendStream[Incoming], reader: Reader) -> None:
    async with into:
        try:
            async for event in events:
                if event.event == "message" and event.data:
                    for read in reader.messages(event.data.encode()):
                        message = jsonrpc_message_adapter.validate_python(read, by_name=False)
                        await into.send(SessionMessage(message))
        except httpx2.HTTPError as error:
            await into.send(error)


async def _send_all(
    client: httpx2.AsyncClient,
    endpoint: httpx2.URL,
    queued: ContextReceiveStream[SessionMessage],
    tasks: TaskGroup,
    state: SessionState,
    reader: Reader,
) -> None:
    async for message in queued:
        reader.sent(message.message)
        answered = anyio.Event()
        assert queued.last_context is not None
        queued.last_context.run(tasks.start_soon, _send, client, endpoint, message, answered, state)
        with anyio.move_on_after(_POST_S):
            await answered.wait()


async def _send(
    client: httpx2.AsyncClient,
    endpoint: httpx2.URL,
    message: SessionMessage,
    answered: anyio.Event,
    state: SessionState,
) -> None:
    content = message.message.model_dump(by_alias=True, mode="json", exclude_unset=True)
    try:
        async with client.stream("POST", endpoint, json=content) as response:
            if response.status_code >= HTTPStatus.BAD_REQUEST:
                state.fail(status_error(state, response.status_code, state.challenge, body=state.words))
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
        if lost := to_server_error(state, error):
            state.fail(lost)
    except httpx2.HTTPError:
        pass  # the server may have received the message: the stream has its answer
    finally:
        answered.set()
