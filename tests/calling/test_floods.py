"""A server that sends messages without end loses its connection, and takes neither memory nor the time of others."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest
import structlog
from mcp import Client
from mcp.types import TextContent

from query.calling.limits import CallLimits
from shared.upstream.session import Allowance
from shared.upstream.target import HttpTarget, StdioTarget, Target
from tests.support.calling import calling, tool_of
from tests.support.hostile.messages import result
from tests.support.hostile.scripted_http import Exchange, scripted_http
from tests.support.hostile.scripts import GOOD
from tests.support.hostile.sse_server import SseServer
from tests.support.metrics import counted

pytestmark = [pytest.mark.process, pytest.mark.anyio]

LIMITS = CallLimits(timeout_s=60)
WORDS = "srv: sends more than 500 messages for a call, or 100 a second, so its connection was ended"
UNREAD = "srv: sends more than 32 requests without reading our answers, so its connection was ended"


def message(method: str, number: int = 0, **params: Any) -> bytes:
    """Return a notification, or with a number a request."""
    return json.dumps({"jsonrpc": "2.0", **({"id": number} if number else {}), "method": method, **params}).encode()


MESSAGES: dict[str, Callable[[int], bytes]] = {
    "ping": lambda number: message("ping", number),
    "sampling": lambda number: message("sampling/createMessage", number, params={"messages": [], "maxTokens": 1}),
    "unknown request": lambda number: message("no/such", number),
    "list_changed": lambda _: message("notifications/tools/list_changed"),
    "progress of no call": lambda _: message("notifications/progress", params={"progressToken": 99, "progress": 1}),
    "log": lambda _: message("notifications/message", params={"level": "debug", "data": "x" * 100}),
    "answer to no request": lambda _: json.dumps({"jsonrpc": "2.0", "id": 99, "result": {}}).encode(),
    "no JSON": lambda _: b"loading ...",
    "nothing": lambda _: b"",
}

PROGRAM = """
import json, sys
line = {line!r}
sys.path.insert(0, {path!r})
from tests.support.hostile.messages import answer, one_page, tool
for request in map(json.loads, sys.stdin):
    if request.get("method") == "tools/call":
        while True:
            sys.stdout.write(line + "\\n")
            sys.stdout.flush()
    elif reply := answer(request, one_page(tool("one"))):
        print(json.dumps(reply), flush=True)
"""


@contextmanager
def over_stdio(kind: str) -> Generator[Target]:
    yield StdioTarget(sys.executable, ("-c", PROGRAM.format(line=MESSAGES[kind](7).decode(), path=sys.path[0])))


@contextmanager
def over_http(kind: str) -> Generator[Target]:
    def respond(exchange: Exchange) -> None:
        if exchange.method != "tools/call":
            exchange.play(GOOD)
            return
        exchange.begin(200, "text/event-stream")
        for number in itertools.count(1):
            text = MESSAGES[kind](number)
            exchange.wfile.write((b"event: message\ndata: " + text if text else b": comment") + b"\n\n")
            if exchange.server.stopping.is_set():
                return

    with scripted_http(respond) as server:
        yield HttpTarget(server.url)


@contextmanager
def over_sse(kind: str) -> Generator[Target]:
    def flood(exchange: Exchange) -> Iterator[bytes]:
        exchange.send(202)
        return map(MESSAGES[kind], itertools.count(1))

    with scripted_http(SseServer(flood)) as server:
        yield HttpTarget(server.url, "sse")


OVER = {"stdio": over_stdio, "http": over_http, "sse": over_sse}


async def call(client: Client) -> str:
    content = (await client.call_tool("call_tool", {"tool_name": "srv:one"})).content[0]
    assert isinstance(content, TextContent)
    return content.text


# an event that is no JSON, and any answer, end the call
ENDING = ("no JSON", "answer to no request")
KINDS = [
    *(("stdio", kind) for kind in MESSAGES if kind != "answer to no request"),
    *(("http", kind) for kind in MESSAGES if kind not in ENDING),
    *(("sse", kind) for kind in ("ping", "list_changed", "log", "nothing")),
]


@pytest.mark.parametrize(("transport", "kind"), KINDS)
async def test_a_flood_ends_the_connection_with_one_line_and_a_count(transport: str, kind: str) -> None:
    with OVER[transport](kind) as target, structlog.testing.capture_logs() as lines, counted() as grown:
        async with calling({"srv": target}, tool_of("srv", "one"), limits=LIMITS) as client:
            told = await call(client)

    # answers to requests over HTTP are slower than the requests
    assert told.startswith((WORDS, UNREAD))
    assert [line["server"] for line in lines if line["event"] == "server_flooded"] == ["srv"]
    assert grown["toolscale_server_floods_total"] == 1


async def test_requests_of_a_server_whose_answers_are_not_read_end_the_connection() -> None:
    def respond(exchange: Exchange) -> None:
        if "method" not in exchange.request_json and exchange.command == "POST":
            exchange.hang()  # with the answer to a ping
        elif exchange.method == "tools/call":
            exchange.begin(200, "text/event-stream")
            for number in range(1, Allowance.UNANSWERED + 50):
                exchange.wfile.write(b"event: message\ndata: " + MESSAGES["ping"](number) + b"\n\n")
            exchange.hang()
        else:
            exchange.play(GOOD)

    with scripted_http(respond) as server:
        async with calling({"srv": HttpTarget(server.url)}, tool_of("srv", "one"), limits=LIMITS) as client:
            told = await call(client)

    assert told == UNREAD


async def test_large_results_and_steady_progress_are_no_flood() -> None:
    text = "a" * (3 << 20)

    def respond(exchange: Exchange) -> None:
        if exchange.method == "tools/call":
            token = exchange.request_json["params"]["_meta"]["progressToken"]
            progress = {"jsonrpc": "2.0", "method": "notifications/progress"}
            steps = [{**progress, "params": {"progressToken": token, "progress": step}} for step in range(200)]
            large = {"content": [{"type": "text", "text": text}]}
            exchange.send_events(*steps, result(exchange.request_json, large))
        else:
            exchange.play(GOOD)

    told: list[str] = []

    async def call_it(client: Client) -> None:
        told.append((await call(client))[:3])

    with scripted_http(respond) as server:
        async with calling({"srv": HttpTarget(server.url)}, tool_of("srv", "one"), limits=LIMITS) as client:
            for _ in range(2):
                async with anyio.create_task_group() as tasks:
                    for _ in range(3):
                        tasks.start_soon(call_it, client)

    assert told == ["aaa"] * 6
