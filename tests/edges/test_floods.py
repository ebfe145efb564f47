"""A server that sends without end, in whatever way and at whatever time, loses its connection; memory is bounded."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

import anyio
import psutil
import pytest
import structlog

from query.calling.limits import CallLimits
from shared.errors import ServerError
from shared.upstream.target import HttpTarget, StdioTarget
from tests.support.calling import calling, text_of, tool_of
from tests.support.hostile.scripted_http import Exchange, scripted_http
from tests.support.hostile.scripts import GOOD
from tests.support.metrics import counted
from workers.fetch.definitions import Limits
from workers.fetch.session import fetch_tools_blocking

pytestmark = [pytest.mark.process, pytest.mark.anyio]

MOST_MIB = 150
FLOODS = "toolscale_server_floods_total"

# the method at which the program begins to flood ("" for at once), the stream, and the text that it repeats
PROGRAM = """
import json, sys, threading
at, to, text, path = {at!r}, {to!r}, {text!r}, {path!r}
sys.path.insert(0, path)
from tests.support.hostile.messages import answer, one_page, tool
stream = getattr(sys, to)
def flood():
    while True:
        stream.write(text)
        stream.flush()
for request in map(json.loads, sys.stdin):
    method = request.get("method")
    reply = method and answer(request, one_page(tool("one")))
    if method == "tools/call" and at == "after":
        reply = {{"jsonrpc": "2.0", "id": request["id"], "result": {{"content": []}}}}
    if reply and method != at:
        print(json.dumps(reply), flush=True)
    if method == at or (at == "after" and method == "tools/call"):
        threading.Thread(target=flood).start()
"""


def line(method: str, **more: object) -> str:
    return json.dumps({"jsonrpc": "2.0", "method": method, **more}) + "\n"


TEXTS = {
    "pings": line("ping", id=7),
    "list_changed": line("notifications/tools/list_changed"),
    "unknown notifications": line("notifications/none", params={"x": "y" * 50}),
    "logs": line("notifications/message", params={"level": "info", "data": "x" * 1_000}),
    "progress": line("notifications/progress", params={"progressToken": 1, "progress": 1}),
    "large notifications": line("notifications/message", params={"level": "info", "data": "x" * 100_000}),
    "blank lines": "\n" * 100,
    "no JSON": "loading ...\n",
}


def flooding(at: str, text: str, to: str = "stdout") -> StdioTarget:
    return StdioTarget(sys.executable, ("-c", PROGRAM.format(at=at, to=to, text=text, path=sys.path[0])))


@contextmanager
def bounded() -> Generator[Callable[[], list[str]]]:
    """Yield a function that returns the servers of floods that were logged; at the end, memory has grown little."""
    process = psutil.Process()
    before = process.memory_info().rss
    with structlog.testing.capture_logs() as lines, counted() as grown:
        yield lambda: [entry["server"] for entry in lines if entry["event"] == "server_flooded"]
    assert (process.memory_info().rss - before) >> 20 < MOST_MIB
    assert grown[FLOODS] == 1


@pytest.mark.parametrize("kind", TEXTS)
def test_a_flood_in_place_of_a_list_ends_the_listing(kind: str) -> None:
    with bounded() as flooded:
        with pytest.raises(ServerError):
            fetch_tools_blocking("srv", flooding("tools/list", TEXTS[kind]), Limits())

        assert flooded() == ["srv"]


@pytest.mark.parametrize("at", ["tools/list", "initialize"])
def test_a_flood_of_stderr_ends_the_listing(at: str) -> None:
    with bounded() as flooded:
        with pytest.raises(ServerError):
            fetch_tools_blocking("srv", flooding(at, "x" * 100_000 + "\n", "stderr"), Limits())

        assert flooded() == ["srv"]


@pytest.mark.parametrize("kind", ["pings", "comments", "list_changed"])
def test_a_flood_on_the_response_of_a_listing_ends_it(kind: str) -> None:
    data = b": still here\n\n" if kind == "comments" else f"data: {TEXTS[kind]}\n".encode()

    def respond(exchange: Exchange) -> None:
        if exchange.method != "tools/list":
            exchange.play(GOOD)
            return
        exchange.begin(200, "text/event-stream")
        while not exchange.server.stopping.is_set():
            exchange.wfile.write(data * 100)

    with bounded() as flooded, scripted_http(respond) as server:
        with pytest.raises(ServerError):
            fetch_tools_blocking("srv", HttpTarget(server.url), Limits())

        assert flooded() == ["srv"]


def test_pages_without_end_are_refused() -> None:
    number = itertools.count()

    def respond(exchange: Exchange) -> None:
        if exchange.method != "tools/list":
            exchange.play(GOOD)
            return
        page: dict[str, object] = {"tools": [], "nextCursor": f"{next(number)}"}
        exchange.send_json({"jsonrpc": "2.0", "id": exchange.request_json["id"], "result": page})

    with scripted_http(respond) as server, pytest.raises(ServerError, match="pages"):
        fetch_tools_blocking("srv", HttpTarget(server.url), Limits(timeout_s=60))


@pytest.mark.parametrize(("to", "text"), [("stderr", "x" * 100_000 + "\n"), ("stdout", TEXTS["logs"])])
@pytest.mark.parametrize("at", ["tools/call", "after"])
async def test_a_flood_during_and_after_a_call_ends_the_connection(at: str, to: str, text: str) -> None:
    limits = CallLimits(timeout_s=60)
    with bounded() as flooded:
        async with calling({"srv": flooding(at, text, to)}, tool_of("srv", "one"), limits=limits) as client:
            result = await client.call_tool("call_tool", {"tool_name": "srv:one"})

            with anyio.fail_after(60):
                while not flooded():  # noqa: ASYNC110  # there is no event to wait for
                    await anyio.sleep(0.02)

    assert result.is_error == (at == "tools/call")
    if result.is_error:
        assert "srv" in text_of(result)


def test_thousands_of_lines_before_a_list_are_no_flood() -> None:
    program = PROGRAM.format(at="", to="stdout", text="", path=sys.path[0])
    noisy = "import sys\nfor n in range(3_000): print('installing', n); print('x' * 200, file=sys.stderr)\n"

    listing = fetch_tools_blocking("srv", StdioTarget(sys.executable, ("-c", noisy + program)), Limits())

    assert [tool.name for tool in listing.tools] == ["one"]
