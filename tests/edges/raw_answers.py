"""Servers that answer one method with given bytes, over each transport, and otherwise well."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager

from mcp.types import CallToolResult, TextContent

from query.calling.limits import CallLimits
from shared.upstream.target import HttpTarget, StdioTarget, Target
from tests.support.calling import calling, tool_of
from tests.support.hostile.messages import one_page, tool
from tests.support.hostile.scripted_http import Exchange, scripted_http
from tests.support.hostile.sse_server import SseServer

# Far longer than any of these calls may take; a test asserts on the time that one took.
LIMITS = CallLimits(timeout_s=45)
SOON_S = 20.0
TRANSPORTS = ("stdio", "json", "events", "sse")

_PROGRAM = """
import json, sys
from sys import argv, stdin, stdout
sys.path.insert(0, argv[3])
from tests.support.hostile.messages import answer, one_page, tool
for request in map(json.loads, stdin):
    if request.get("method") == argv[1] and "id" in request:
        stdout.buffer.write(bytes.fromhex(argv[2]).replace(b"ID", json.dumps(request["id"]).encode()))
        stdout.buffer.flush()
    elif reply := answer(request, one_page(tool("one"), tool("two"))):
        print(json.dumps(reply), flush=True)
"""
_PAGES = one_page(tool("one"), tool("two"))


@contextmanager
def answering(transport: str, raw: bytes, method: str = "tools/call") -> Generator[Target]:
    """Yield a server that answers each request of this method with these bytes, in which ID stands for its id."""

    def respond(exchange: Exchange) -> None:
        if exchange.method != method:
            exchange.play(_PAGES)
            return
        text = raw.replace(b"ID", json.dumps(exchange.request_json["id"]).encode())
        if transport == "json":
            exchange.send(200, text)
        else:
            exchange.send(200, b"event: message\ndata: " + text + b"\n\n", "text/event-stream")

    def on_call(exchange: Exchange) -> list[bytes]:
        exchange.send(202)  # here, by the thread of the request
        return [raw.replace(b"ID", json.dumps(exchange.request_json["id"]).encode())]

    if transport == "stdio":
        yield StdioTarget(sys.executable, ("-c", _PROGRAM, method, (raw + b"\n").hex(), sys.path[0]))
    elif transport == "sse":
        with scripted_http(SseServer(on_call)) as server:
            yield HttpTarget(server.url, "sse")
    else:
        with scripted_http(respond) as server:
            yield HttpTarget(server.url)


async def called(target: Target, times: int = 1) -> list[CallToolResult]:
    """Return the results of calls of this server's tool, one after the other."""
    async with calling({"srv": target}, tool_of("srv", "one"), limits=LIMITS) as client:
        return [await client.call_tool("call_tool", {"tool_name": "srv:one"}) for _ in range(times)]


def texts(result: CallToolResult) -> str:
    """Return the texts of a result."""
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


def says(text: str) -> bytes:
    """Return an answer with this text, as JSON writes it."""
    return b'{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"%s"}]}}' % text.encode()
