"""A server of the older SSE transport is found behind its URL, whatever its entry says, and however it uses HTTP."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import anyio
import pytest

from shared.errors import AddressForbidden, ProtocolViolation, ServerError, ServerFailed
from shared.upstream.target import HttpTarget
from tests.support.calling import calling, text_of, tool_of
from tests.support.hostile.messages import Message, answer, result
from tests.support.hostile.scripted_http import Exchange, scripted_http
from tests.support.hostile.scripts import GOOD, hangs_up, plays
from workers.fetch.definitions import Limits
from workers.fetch.session import fetch_tools_blocking

pytestmark = pytest.mark.process

LIMITS = Limits(timeout_s=60)
Transport = Literal["streamable-http", "sse"]


@dataclass
class OlderServer:
    """A server of the older transport; the fields are its peculiarities.

    `refusal` is the status of a POST to its URL, `endpoint` what it names, `before` what its stream has before that.
    `accept` answers the POST of a message, after which the stream has the answer.
    """

    refusal: int = 405
    endpoint: str = "/messages?session=SESSION"
    before: bytes = b""
    refused_with: bytes = b"no"
    refused_type: str = "text/plain"
    accept: Callable[[Exchange], None] = lambda exchange: exchange.send(202, b"Accepted", "text/plain")
    is_late: bool = False
    streams: dict[str, queue.Queue[Message]] = field(default_factory=dict[str, "queue.Queue[Message]"])

    def __call__(self, exchange: Exchange) -> None:
        if exchange.path.partition("?")[0] == "/mcp" and "session" not in exchange.path:
            if exchange.command == "GET":
                self._stream(exchange)
            else:
                exchange.send(self.refusal, self.refused_with, self.refused_type, connection="close")
                exchange.close_connection = True
        elif exchange.command == "POST":
            session = exchange.path.rpartition("=")[2].rpartition("/")[2]
            if reply := called(exchange.request_json) or answer(exchange.request_json, GOOD):
                self.streams[session].put(reply)
            self.accept(exchange)

    def _stream(self, exchange: Exchange) -> None:
        session = f"s{len(self.streams)}"
        messages = self.streams[session] = queue.Queue[Message]()
        exchange.begin(200, "text/event-stream; charset=utf-8", connection="close")
        exchange.close_connection = True
        if self.is_late:
            exchange.wfile.write(b": wait\n\n")
            exchange.wfile.flush()
            exchange.server.stopping.wait(2)
        port = str(exchange.server.server_port)
        endpoint = self.endpoint.replace("SESSION", session).replace("PORT", port)
        exchange.wfile.write(self.before + f"event: endpoint\ndata: {endpoint}\n\n".encode())
        while not exchange.server.stopping.is_set():
            with suppress(queue.Empty):
                message = json.dumps(messages.get(timeout=0.05)).encode()
                exchange.wfile.write(b"event: message\ndata: " + message + b"\n\n")


def called(request: Message) -> Message | None:
    if request.get("method") != "tools/call":
        return None
    return result(request, {"content": [{"type": "text", "text": "called"}]})


def cut(exchange: Exchange) -> None:
    exchange.begin(202, content_length="50")
    exchange.close_connection = True


def stays_open(exchange: Exchange) -> None:
    exchange.hang()


def with_body(exchange: Exchange) -> None:
    exchange.send_json({"ok": True})


def no_content(exchange: Exchange) -> None:
    exchange.send(204)


ENDPOINT = b": hello\r\nretry: 5\r\nevent: endpoint\r\ndata: /messages\r\n\r\n"
SERVERS: dict[str, Callable[[], OlderServer]] = {
    **{f"refuses with {code}": partial(OlderServer, code) for code in (400, 403, 404, 405, 406, 415, 422)},
    "opens a stream for a POST too": lambda: OlderServer(200, refused_with=ENDPOINT, refused_type="text/event-stream"),
    "an absolute endpoint": lambda: OlderServer(endpoint="http://127.0.0.1:PORT/messages/SESSION"),
    "an absolute endpoint in capitals": lambda: OlderServer(endpoint="HTTP://127.0.0.1:PORT/messages/SESSION"),
    "a relative endpoint": lambda: OlderServer(endpoint="messages/SESSION"),
    "a path with dots": lambda: OlderServer(endpoint="./../messages/SESSION"),
    "a query alone": lambda: OlderServer(endpoint="?session=SESSION"),
    "without a scheme": lambda: OlderServer(endpoint="//127.0.0.1:PORT/messages/SESSION"),
    "blanks": lambda: OlderServer(endpoint="  /messages/SESSION  "),
    "a late endpoint": lambda: OlderServer(is_late=True),
    "other events first": lambda: OlderServer(before=b": hi\n\nevent: ping\ndata: 1\n\ndata: {}\n\nretry: 10\n\n"),
    "POSTs without an answer": lambda: OlderServer(accept=hangs_up),
    "POSTs that are cut": lambda: OlderServer(accept=cut),
    "POSTs that stay open": lambda: OlderServer(accept=stays_open),
    "POSTs with a body": lambda: OlderServer(accept=with_body),
    "POSTs with 204": lambda: OlderServer(accept=no_content),
}


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_of_the_older_transport_is_listed_and_that_is_remembered(name: str) -> None:
    with scripted_http(SERVERS[name]()) as server:
        listing = fetch_tools_blocking("srv", HttpTarget(server.url), LIMITS)
        first, server.seen = server.seen, []
        again = fetch_tools_blocking("srv", HttpTarget(server.url), LIMITS)

    assert [tool.name for tool in listing.tools] == ["one"]
    assert again == listing
    assert [exchange.method for exchange in first][:3] == ["server/discover", "initialize", "GET"]
    assert server.methods[0] == "GET"


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["refuses with 405", "POSTs without an answer", "a query alone"])
async def test_calls_reach_it_without_a_second_search_for_the_transport(name: str) -> None:
    older = SERVERS[name]()
    with scripted_http(older) as server:
        targets = {"srv": HttpTarget(server.url)}
        await anyio.to_thread.run_sync(fetch_tools_blocking, "srv", targets["srv"], LIMITS)
        server.seen.clear()
        async with calling(targets, tool_of("srv", "one"), protocol_version="2025-11-25") as client:
            for _ in range(2):
                answered = await client.call_tool("call_tool", {"tool_name": "one", "parameters": {}})
                assert text_of(answered) == "called"

        assert "server/discover" not in server.methods
        assert server.methods.count("GET") == 1


FOREIGN = {
    "another host": ("http://evil.example/messages?token=s3cret-s3cret", "evil.example"),
    "another port": ("http://127.0.0.1:1/messages", "127.0.0.1:1"),
    "another scheme": ("https://127.0.0.1:PORT/messages", "https://127.0.0.1"),
    "a metadata service": ("//169.254.169.254/latest", "169.254.169.254"),
    "a user": ("http://127.0.0.1@evil.example/", "evil.example"),
    "no address": ("http://[", "http://"),
}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("transport", ["streamable-http", "sse"])
def test_an_endpoint_elsewhere_is_refused_at_once_and_named(name: str, transport: Transport) -> None:
    endpoint, shown = FOREIGN[name]

    with scripted_http(OlderServer(endpoint=endpoint)) as server, pytest.raises(ServerError) as refused:
        fetch_tools_blocking("srv", HttpTarget(server.url, transport), LIMITS)

    assert isinstance(refused.value, AddressForbidden | ProtocolViolation)
    assert shown in refused.value.reason
    assert "s3cret" not in refused.value.reason
    assert "POST" not in [exchange.command for exchange in server.seen if exchange.path != "/mcp"]


@pytest.mark.parametrize("status", [400, 404, 405, 422])
def test_a_server_without_either_transport_has_the_error_of_the_first(status: int) -> None:
    with scripted_http(lambda exchange: exchange.send(status, b"not here", "text/plain")) as server:
        with pytest.raises(ProtocolViolation) as refused:
            fetch_tools_blocking("srv", HttpTarget(server.url), LIMITS)

        assert f"HTTP {status}" in refused.value.reason
        assert server.methods == ["server/discover", "initialize", "GET"]


@pytest.mark.parametrize("status", [401, 429, 500, 502])
def test_a_status_with_another_reason_leads_to_no_other_transport(status: int) -> None:
    with scripted_http(lambda exchange: exchange.send(status, b"", "text/plain")) as server:
        with pytest.raises(ServerError):
            fetch_tools_blocking("srv", HttpTarget(server.url), LIMITS)

        assert "GET" not in server.methods


def test_a_server_that_is_upgraded_is_listed_over_the_newer_transport() -> None:
    respond: list[Callable[[Exchange], None]] = [OlderServer()]

    with scripted_http(lambda exchange: respond[0](exchange)) as server:
        fetch_tools_blocking("srv", HttpTarget(server.url), LIMITS)
        respond[0] = plays(GOOD)
        upgraded = fetch_tools_blocking("srv", HttpTarget(server.url), LIMITS)

    assert [tool.name for tool in upgraded.tools] == ["one"]


@pytest.mark.parametrize(("transport", "shown"), [("sse", "endpoint"), ("streamable-http", "405")])
def test_a_stream_that_ends_without_an_endpoint_is_an_error_at_once(transport: Transport, shown: str) -> None:
    def respond(exchange: Exchange) -> None:
        if exchange.command == "GET":
            exchange.send(200, b": hello\n\n", "text/event-stream", connection="close")
        else:
            exchange.send(405)

    with scripted_http(respond) as server, pytest.raises(ProtocolViolation, match=shown):
        fetch_tools_blocking("srv", HttpTarget(server.url, transport), LIMITS)


def test_an_event_stream_that_is_not_of_the_older_transport_leaves_the_first_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shared.upstream.older_sse._ENDPOINT_S", 0.5)

    def respond(exchange: Exchange) -> None:
        if exchange.command == "GET":
            exchange.begin(200, "text/event-stream", connection="close")
            exchange.wfile.write(b"event: message\ndata: {}\n\n")
            exchange.wfile.flush()
            exchange.hang()
        else:
            exchange.send(400, b"no such tenant", "text/plain")

    with scripted_http(respond) as server, pytest.raises(ProtocolViolation, match="no such tenant"):
        fetch_tools_blocking("srv", HttpTarget(server.url), LIMITS)


def test_a_refused_message_ends_the_session_with_the_status() -> None:
    def respond(exchange: Exchange) -> None:
        exchange.send(503, b"overloaded", "text/plain")

    with scripted_http(OlderServer(accept=respond)) as server, pytest.raises(ServerFailed, match="HTTP 503"):
        fetch_tools_blocking("srv", HttpTarget(server.url), LIMITS)
