"""Which requests are answered as an event stream: calls, so that progress and an ended connection have a way.

Everything else is answered in plain JSON, which has no limit on its size and needs no second reader.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Larger bodies are refused by either app.
MAX_BODY_BYTES = 4 << 20
_READING = frozenset({"find_tool", "describe_tool", "list_available_tools", "get_active_toolset", "get_savings_report"})


class CallsStreamed:
    """ASGI: looks into a request's body, and hands it on whole to the one of two apps that answers it."""

    def __init__(self, plain: ASGIApp, streaming: ASGIApp) -> None:
        self._plain = plain
        self._streaming = streaming

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a call as a stream where its client takes one, and everything else in plain JSON."""
        if scope["type"] != "http" or scope["method"] != "POST" or not _takes_streams(Headers(scope=scope)):
            await self._plain(scope, receive, send)
            return
        messages = await _messages(receive)
        body = b"".join(message.get("body", b"") for message in messages)
        app = self._streaming if is_call(body) else self._plain
        await app(scope, _replayed(messages, receive), send)


def is_call(body: bytes) -> bool:
    """Return whether this JSON-RPC message calls a tool of another server, by `call_tool` or directly."""
    try:
        message: Any = json.loads(body)
        return bool(message["method"] == "tools/call" and message["params"]["name"] not in _READING)
    except (ValueError, RecursionError, LookupError, TypeError):
        return False  # refused by who answers it


def _takes_streams(headers: Headers) -> bool:
    accepted = headers.get("accept", "")
    size = headers.get("content-length", "")
    fits = size.isdecimal() and int(size) <= MAX_BODY_BYTES
    return fits and "text/event-stream" in accepted and "application/json" in accepted


async def _messages(receive: Receive) -> list[Message]:
    """Return the messages that make up the body, which the server ends at its declared length."""
    messages = [await receive()]
    while messages[-1]["type"] == "http.request" and messages[-1].get("more_body"):
        messages.append(await receive())
    return messages


def _replayed(messages: list[Message], receive: Receive) -> Receive:
    """Return a way to receive these messages, and then what comes after them."""
    left = iter(messages)

    async def replay() -> Message:
        return next(left, None) or await receive()

    return replay
