"""A server that answers a request twice: the second answer never becomes the result of the next caller's call."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp_types import TextContent

from tests.e2e.test_serve import ask, serving
from tests.support.hostile.messages import answer, one_page, tool

pytestmark = pytest.mark.process

SECRET = "the result of ann"


def response(message: dict[str, Any] | None, form: str = "length") -> bytes:
    """Return a response of HTTP with this message, or one without any."""
    if message is None:
        return b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    kind = b"application/json"
    if form == "events":
        kind, body = b"text/event-stream", b"event: message\ndata: " + body + b"\n\n"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: " + kind + b"\r\n"
    if form == "length":
        return head + b"content-length: %d\r\n\r\n" % len(body) + body
    return head + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def called(message: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of the tool, which repeats its text."""
    text = message["params"]["arguments"]["text"]
    return {"id": message["id"], **result(f"for {text}")}


def result(text: str) -> dict[str, Any]:
    return {"result": {"content": [{"type": "text", "text": text}]}}


def stale(message: dict[str, Any], number: int) -> dict[str, Any]:
    """Return a second answer to a message, whose id is that of one of the next requests."""
    return {"id": message["id"] + number, **result(SECRET)}


Second = Callable[[dict[str, Any]], bytes]
SECONDS: dict[str, Second] = {
    "of the same id": lambda message: response(stale(message, 0)),
    "of the next id": lambda message: response(stale(message, 1)),
    "in chunks": lambda message: response(stale(message, 1), "chunked"),
    "with events": lambda message: response(stale(message, 1), "events"),
    "after a line end": lambda message: b"\r\n" + response(stale(message, 1)),
    "twice": lambda message: response(stale(message, 1)) + response(stale(message, 2)),
    "without a head": lambda message: json.dumps(stale(message, 1)).encode(),
    "a status alone": lambda _: response(None),
    "cut": lambda message: response(stale(message, 1))[:-5],
}


@contextmanager
def twice(second: Second, form: str) -> Generator[str]:
    """Yield the URL of a server that sends something after its answer to ann, on the same connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve(connection: socket.socket) -> None:
            with connection, connection.makefile("rb") as received:
                while head := received.readline():
                    lines = list(iter(received.readline, b"\r\n"))
                    sizes = [int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length")]
                    body = received.read(sum(sizes))
                    if not head.startswith(b"POST"):
                        connection.sendall(b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n")
                        continue
                    message = json.loads(body)
                    if message.get("method") != "tools/call":
                        connection.sendall(response(answer(message, one_page(tool("echo")))))
                        continue
                    is_first = message["params"]["arguments"]["text"] == "ann"
                    connection.sendall(response(called(message), form) + (second(message) if is_first else b""))

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=_quietly, args=(serve, connection), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/mcp"
        server.shutdown(socket.SHUT_RDWR)


def _quietly(serve: Callable[[socket.socket], None], connection: socket.socket) -> None:
    with suppress(OSError):  # the client closed it
        serve(connection)


def texts_of(url: str, server: str, callers: list[str]) -> list[str]:
    """Return the results of the calls of these callers, one after the other."""

    async def call() -> list[str]:
        texts: list[str] = []
        for caller in callers:
            async with Client(url) as client:
                arguments = {"tool_name": f"{server}:echo", "parameters": {"text": caller}}
                found = await client.call_tool("call_tool", arguments)
                texts.append(" ".join(block.text for block in found.content if isinstance(block, TextContent)))
        return texts

    return anyio.run(call)


@pytest.mark.parametrize("form", ["length", "chunked"])
def test_the_next_caller_gets_his_own_result_over_http(form: str, tmp_path: Path) -> None:
    with serving_all(tmp_path, form) as (url, names):
        for name in names:
            assert texts_of(url, name, ["ann", "bob", "eve"]) == ["for ann", "for bob", "for eve"], name


@contextmanager
def serving_all(directory: Path, form: str) -> Generator[tuple[str, list[str]]]:
    """Yield the URL of a service with a server for each kind of second response, and their ids."""
    with ExitStack() as stack:
        servers = {
            name.replace(" ", "-"): {"url": stack.enter_context(twice(second, form)), "timeout": 20_000}
            for name, second in SECONDS.items()
        }
        config = directory / "mcp.json"
        config.write_text(json.dumps({"mcpServers": servers}))
        _, url = stack.enter_context(serving(config))
        ask(url)
        yield url, list(servers)


PROGRAM = """
import json, sys
def put(message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def text(words): return {"result": {"content": [{"type": "text", "text": words}]}}
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "tools/call":
        asked = message["params"]["arguments"]["text"]
        put({"id": message["id"], **text("for " + asked)})
        if asked == "ann":
            for number in range(4):
                put({"id": message["id"] + number, **text("the result of ann")})
    elif message.get("method") == "initialize":
        put({"id": message["id"], "result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
             "serverInfo": {"name": "s", "version": "1"}}})
    elif message.get("method") == "tools/list":
        put({"id": message["id"], "result": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}})
    elif "id" in message:
        put({"id": message["id"], "error": {"code": -32601, "message": "no such method"}})
"""


def test_the_next_caller_gets_his_own_result_over_stdio(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"srv": {"command": sys.executable, "args": ["-c", PROGRAM]}}}))
    with serving(config) as (_, url):
        ask(url)

        assert texts_of(url, "srv", ["ann", "bob", "eve"]) == ["for ann", "for bob", "for eve"]
