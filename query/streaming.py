"""Event streams for calls, so that a client gets progress, and for clients that listen.

Every request ends when its client disconnects.

All other requests get plain JSON: clients limit a message of a stream to 1 MiB, and as a stream, a question to
`find_tool` takes about 5 % more processor time (12.4 and 13.1 ms, means of three runs).
The event loop parses requests, so a request with very many values is rejected: parsing it would delay all others.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import anyio
from mcp_types import INVALID_REQUEST, jsonrpc_message_adapter
from pydantic import ValidationError
from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from query.listening import LISTEN
from query.tools.registry import read_only_tools
from shared.json_rpc import Json, RequestRefused, checked_request, read_request
from shared.upstream.messages import holds_more_values

if TYPE_CHECKING:
    from anyio import CancelScope
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Larger bodies are refused by either app.
MAX_BODY_BYTES = 4 << 20
MAX_BODY_VALUES = 50_000
"""Values of one request, many times what an agent writes; four megabytes of empty lists take seconds to parse."""

WATCHED_AFTER_S = 0.05
"""Seconds after which a request without a stream ends with its connection; most have ended themselves before."""

_READ_ONLY = read_only_tools()


class CallsStreamed:
    """ASGI: reads a request's body and passes it to the streaming or to the plain app; refuses what is no request."""

    def __init__(self, plain: ASGIApp, streaming: ASGIApp) -> None:
        self._plain = plain
        self._streaming = streaming

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Return a stream for a call if its client accepts streams, and plain JSON for everything else."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._plain(scope, receive, send)
            return
        message = await body_message(receive)
        if message["type"] != "http.request":  # the client has left
            return
        app, body = self._app(message["body"], Headers(scope=scope))
        repeated = replayed({**message, "body": body}, receive)
        if app is not self._plain or message["more_body"]:
            await app(scope, repeated, send)  # a stream ends with its connection itself, and a rejection at once
            return
        loop, watching = asyncio.get_running_loop(), list[asyncio.Task[None]]()
        with anyio.CancelScope() as request:
            # a task alone: to end a group of tasks takes the event loop another turn
            watch = loop.call_later(
                WATCHED_AFTER_S,
                lambda: watching.append(loop.create_task(_cancel_at_disconnect(receive, request))),
            )
            try:
                await app(scope, repeated, send)
            finally:
                watch.cancel()
                for task in watching:
                    task.cancel()

    def _app(self, body: bytes, headers: Headers) -> tuple[ASGIApp, bytes]:
        """Return the app for a body, and the body as the app can read it."""
        if len(body) > MAX_BODY_BYTES:
            return self._plain, body  # rejects it
        if holds_more_values(body, MAX_BODY_VALUES):
            return _TOO_DENSE, body
        try:
            request, body = readable_request(body)
        except RequestRefused as error:
            return JSONResponse(error.answer, HTTPStatus.BAD_REQUEST), body
        return self._streaming if _takes_streams(headers) and is_call(request) else self._plain, body


def readable_request(body: bytes) -> tuple[Json, bytes]:
    """Return a client's message, and its text as the SDK can read it: the same where it can.

    Raises:
        RequestRefused: it is no message of JSON-RPC.
    """
    try:
        parsed: Any = from_json(body, allow_inf_nan=False)
        is_readable = not (isinstance(parsed, dict) and isinstance(cast("Json", parsed).get("id"), float))
        request = checked_request(cast("object", parsed))
    except RequestRefused:
        raise
    except ValueError:
        request, is_readable = read_request(body), False
    try:
        jsonrpc_message_adapter.validate_python(request, by_name=False)
    except ValidationError:
        reason = "expected a message of JSON-RPC; its result is no object, or its error has no code and message"
        raise RequestRefused(INVALID_REQUEST, reason, request.get("id")) from None
    return request, body if is_readable else json.dumps(request).encode()


def is_call(message: Mapping[str, Any]) -> bool:
    """Return whether this JSON-RPC message is a call of a server's tool, a read of its resource, or listens."""
    method, params = message.get("method"), cast("Json", message.get("params") or {})
    name = params.get("name")
    is_of_server = isinstance(name, str) and name not in _READ_ONLY
    return method in ("resources/read", LISTEN) or (method == "tools/call" and is_of_server)


_TOO_DENSE = JSONResponse(
    {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": INVALID_REQUEST, "message": f"a request may hold {MAX_BODY_VALUES} values at most"},
    },
    status_code=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
)


def _takes_streams(headers: Headers) -> bool:
    accepted = headers.get("accept", "")
    return "text/event-stream" in accepted and "application/json" in accepted


async def body_message(receive: Receive) -> Message:
    """Return the body as one message, or its beginning if it is too large; or the message of a disconnect."""
    body = bytearray()
    more_body = True
    while more_body and len(body) <= MAX_BODY_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            return message
        body += message.get("body", b"")
        more_body = message.get("more_body", False)
    return {"type": "http.request", "body": bytes(body), "more_body": more_body}


async def _cancel_at_disconnect(receive: Receive, request: CancelScope) -> None:
    """Cancel a request whose client has closed the connection; the body was received before."""
    while (await receive())["type"] != "http.disconnect":
        pass
    request.cancel()


def replayed(message: Message, receive: Receive) -> Receive:
    """Return a `receive` that yields this message first, then later ones."""
    first: list[Message] = [message]

    async def replay() -> Message:
        return first.pop() if first else await receive()

    return replay
