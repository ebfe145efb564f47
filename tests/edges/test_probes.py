"""A server that works with the clients of today is listed and called, whatever it does at the version probe."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from shared.errors import ServerError
from shared.upstream.target import HttpTarget, StdioTarget
from tests.edges.first_words import BEHAVIOURS
from tests.support.calling import calling, text_of, tool_of
from tests.support.hostile.messages import Message
from tests.support.hostile.scripted_http import Exchange, Respond, scripted_http
from tests.support.hostile.scripts import GOOD, html, invalid_json, status, wrong_id
from workers.fetch.definitions import Limits
from workers.fetch.session import fetch_tools_blocking

pytestmark = pytest.mark.process

LIMITS = Limits(timeout_s=60)
# it answers the handshake in the first start
GO_ON = {
    "an error without id",
    "an error with another id",
    "a result with another id",
    "a result that is none",
    "a line, then nothing",
    "nothing",
}


# each takes ten seconds or more
SLOW = {"no word ever", "no answer", "an answer without id", "an answer with another id"}


def cases(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in names]


def target_of(behaviour: str, file: Path) -> StdioTarget:
    program = Path(__file__).with_name("first_words.py")
    return StdioTarget(sys.executable, (str(program), behaviour, str(file)))


def starts(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("behaviour", cases(BEHAVIOURS))
def test_a_server_that_answers_the_probe_in_its_own_way_is_listed_and_that_is_remembered(
    behaviour: str, tmp_path: Path
) -> None:
    target, file = target_of(behaviour, tmp_path / "starts"), tmp_path / "starts"

    listing = fetch_tools_blocking("srv", target, LIMITS)
    first = starts(file)
    again = fetch_tools_blocking("srv", target, LIMITS)

    assert [tool.name for tool in listing.tools] == ["one"]
    assert again == listing
    assert first == (1 if behaviour in GO_ON else 2)
    assert starts(file) == first + 1


@pytest.mark.anyio
@pytest.mark.parametrize("behaviour", ["exits 0", "an error without id, then the end", "its closed stdout"])
async def test_a_call_reaches_such_a_server_too(behaviour: str, tmp_path: Path) -> None:
    target = target_of(behaviour, tmp_path / "starts")

    async with calling({"srv": target}, tool_of("srv", "one")) as client:
        result = await client.call_tool("call_tool", {"tool_name": "one", "parameters": {}})

    assert "tools/call" in text_of(result)  # it knows no such method, which it said in its own words


def test_a_program_that_cannot_start_is_not_started_again_without_end(tmp_path: Path) -> None:
    file = tmp_path / "starts"
    crash = f"import sys; open({str(file)!r}, 'a').write('x\\n'); sys.exit('no API key')"

    with pytest.raises(ServerError, match="no API key"):
        fetch_tools_blocking("srv", StdioTarget(sys.executable, ("-c", crash)), LIMITS)

    assert starts(file) == 1


def resets(exchange: Exchange) -> None:
    exchange.close_connection = True
    exchange.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    exchange.connection.close()


def hangs(exchange: Exchange) -> None:
    exchange.hang()


def cut(exchange: Exchange) -> None:
    exchange.begin(200, content_length="5000")
    exchange.wfile.write(b'{"jsonrpc":"2.0",')
    exchange.close_connection = True


def ends_without_events(exchange: Exchange) -> None:
    exchange.send(200, b": hello\n\n", "text/event-stream", connection="close")
    exchange.close_connection = True


def without_id(exchange: Exchange) -> None:
    exchange.send(200, b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": "no"}}')


def empty(exchange: Exchange) -> None:
    exchange.send(200, b"")


def no_http(exchange: Exchange) -> None:
    exchange.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n")
    exchange.close_connection = True


OVER_HTTP: dict[str, Respond] = {
    "500": status(500),
    "503": status(503),
    "404": status(404),
    "202": status(202),
    "204": status(204),
    "a connection that is reset": resets,
    "an answer that is cut": cut,
    "another protocol": no_http,
    "a page": html,
    "broken JSON": invalid_json,
    "an empty body": empty,
    "no answer": hangs,
    "an answer without id": without_id,
    "an answer with another id": wrong_id,
    "an event stream without events": ends_without_events,
}


@pytest.mark.parametrize("behaviour", cases(OVER_HTTP))
def test_a_server_over_http_that_answers_the_probe_in_its_own_way_is_listed(behaviour: str) -> None:
    def respond(exchange: Exchange) -> None:
        if exchange.method == "server/discover":
            OVER_HTTP[behaviour](exchange)
        else:
            exchange.play(GOOD)

    with scripted_http(respond) as server:
        listing = fetch_tools_blocking("srv", HttpTarget(server.url), LIMITS)
        probes = server.methods.count("server/discover")

        assert fetch_tools_blocking("srv", HttpTarget(server.url), LIMITS).tools == listing.tools

    assert [tool.name for tool in listing.tools] == ["one"]
    assert probes == 1


def test_a_server_that_has_become_a_newer_one_is_listed_in_its_new_way() -> None:
    is_old = True

    def respond(exchange: Exchange) -> None:
        if is_old and exchange.method == "server/discover":
            resets(exchange)
        elif not is_old and exchange.method == "initialize":
            exchange.send(410, b"")
        elif not is_old and exchange.method == "server/discover":
            found: Message = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
            found |= {"serverInfo": {"name": "new", "version": "2"}, "resultType": "complete"}
            exchange.send_json({"jsonrpc": "2.0", "id": exchange.request_json["id"], "result": found})
        else:
            exchange.play(GOOD)

    with scripted_http(respond) as server:
        old = fetch_tools_blocking("srv", HttpTarget(server.url), LIMITS)
        is_old = False
        with pytest.raises(ServerError) as refused:  # of its list, whose form is still the older one
            fetch_tools_blocking("srv", HttpTarget(server.url), LIMITS)

    assert old.protocol_version == "2025-11-25"
    assert "410" not in str(refused.value)
    assert server.methods[-2:] == ["server/discover", "tools/list"]
