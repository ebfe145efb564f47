"""Behaviours of hostile HTTP servers by name: each function answers one request."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator

from tests.support.hostile.messages import Message, Pages, cursor_of, failure, initialized, one_page, result, tool
from tests.support.hostile.scripted_http import Exchange, Respond

GOOD = one_page(tool("one"))
MEGABYTE = 1 << 20


def plays(pages: Pages) -> Respond:
    return lambda exchange: exchange.play(pages)


def status(code: int) -> Respond:
    return lambda exchange: exchange.send(code, b"go away", "text/plain")


def answers(content: object) -> Respond:
    """Answer each request with this result."""
    return lambda exchange: exchange.send_json({"jsonrpc": "2.0", "id": exchange.request_json["id"], "result": content})


def hangs_up(exchange: Exchange) -> None:
    exchange.close_connection = True
    exchange.connection.close()


def on_call(act: Callable[[Exchange], None]) -> Respond:
    """Behave well until a tool is called."""
    return lambda exchange: act(exchange) if exchange.method == "tools/call" else exchange.play(GOOD)


def on_tools_list(act: Callable[[Exchange], None]) -> Respond:
    """Behave well until the tools are asked for."""
    return lambda exchange: act(exchange) if exchange.method == "tools/list" else exchange.play(GOOD)


def hangs(exchange: Exchange) -> None:
    exchange.hang()


def drips_headers(exchange: Exchange) -> None:
    exchange.drip(itertools.chain([b"HTTP/1.1 200 OK\r\nx-slow: "], itertools.repeat(b"a")))


def drips_json(exchange: Exchange) -> None:
    exchange.begin(200, content_length=str(MEGABYTE))
    exchange.drip(itertools.repeat(b" "))


def drips_events(exchange: Exchange) -> None:
    exchange.begin(200, "text/event-stream")
    exchange.drip(itertools.repeat(b":"))


def chatters(exchange: Exchange) -> None:
    """Send notifications for ever, and never the answer."""
    changed = json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}).encode()
    exchange.begin(200, "text/event-stream")
    while not exchange.server.stopping.is_set():
        exchange.wfile.write(b"event: message\ndata: " + changed + b"\n\n")


def huge(megabytes: int) -> Iterator[bytes]:
    """A list of one tool whose description has this many megabytes, as the rest of an answer."""
    yield b'"result":{"tools":[{"name":"huge","inputSchema":{"type":"object"},"description":"'
    yield from itertools.repeat(b"a" * MEGABYTE, megabytes)
    yield b'"}]}}'


def huge_json(exchange: Exchange) -> None:
    exchange.begin(200, connection="close")
    exchange.wfile.write(b'{"jsonrpc":"2.0","id":%d,' % exchange.request_json["id"])
    exchange.wfile.writelines(huge(256))
    exchange.close_connection = True


def huge_event(exchange: Exchange) -> None:
    exchange.begin(200, "text/event-stream", connection="close")
    exchange.wfile.write(b'data: {"jsonrpc":"2.0","id":%d,' % exchange.request_json["id"])
    exchange.wfile.writelines(huge(256))
    exchange.wfile.write(b"\n\n")
    exchange.close_connection = True


def declares_huge(exchange: Exchange) -> None:
    exchange.begin(200, content_length=str(256 * MEGABYTE))
    exchange.hang()


def zip_bomb(exchange: Exchange) -> None:
    exchange.send(200, b"\x1f\x8b not looked into", content_encoding="gzip")


def invalid_json(exchange: Exchange) -> None:
    exchange.send(200, b'{"jsonrpc": "2.0", "id": 1, "result": {')


def html(exchange: Exchange) -> None:
    exchange.send(200, b"<!doctype html><title>Welcome</title>", "text/html; charset=utf-8")


def unknown_version(exchange: Exchange) -> None:
    if exchange.method == "initialize":
        exchange.send_json(initialized(exchange.request_json, "1999-01-01"))
    else:
        exchange.play(GOOD)


def unknown_modern_version(exchange: Exchange) -> None:
    data: Message = {"supported": ["2099-01-01"], "requested": "2026-07-28"}
    exchange.send(400, json.dumps(failure(exchange.request_json, -32022, "unsupported", data=data)).encode())


def redirects(location: str) -> Respond:
    return lambda exchange: exchange.send(307, location=location)


def dies_in_mid_list(exchange: Exchange) -> None:
    """Serve one page, and break off in the second."""
    if exchange.method != "tools/list" or cursor_of(exchange.request_json) is None:
        exchange.play(lambda _cursor: {"tools": [tool("one")], "nextCursor": "2"})
        return
    exchange.begin(200, content_length="5000")
    exchange.wfile.write(b'{"jsonrpc":"2.0",')
    exchange.close_connection = True


def wrong_id(exchange: Exchange) -> None:
    exchange.send_json(result({"id": 4711}, {"tools": [tool("one")]}))


def forgets_cursors(exchange: Exchange) -> None:
    if cursor_of(exchange.request_json):
        exchange.send_json(failure(exchange.request_json, -32602, "cursor expired"))
    else:
        exchange.play(lambda _cursor: {"tools": [tool("one")], "nextCursor": "2"})


def has_no_tools(exchange: Exchange) -> None:
    """A server of resources only, as it may be."""
    request = exchange.request_json
    if exchange.method == "initialize":
        about = {"name": "resources", "version": "1"}
        content: Message = {"protocolVersion": "2025-11-25", "capabilities": {"resources": {}}, "serverInfo": about}
        exchange.send_json(result(request, content))
    elif exchange.method == "tools/list":
        exchange.send_json(failure(request, -32601, "Method not found"))
    else:
        exchange.play(GOOD)
