"""A credential that a server repeats reaches neither a caller nor the log, by whatever path it comes."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from mcp import Client, MCPError

from query.calling.limits import CallLimits
from query.calling.upstreams import Upstreams
from query.mcp import service_of
from shared.upstream.dial import Dialler
from shared.upstream.log import last_lines
from shared.upstream.target import HttpTarget, StdioTarget, Target
from tests.support.calling import catalogue_of, tool_of
from tests.support.hostile.messages import failure, result
from tests.support.hostile.scripted_http import Exchange, scripted_http
from tests.support.hostile.scripts import GOOD, answers

pytestmark = [pytest.mark.process, pytest.mark.anyio]

CANARY = 'canary-0123456789-"quoted"'
HEADERS = {"X-Api-Key": CANARY}
ONE = tool_of("srv", "one")
LIMITS = CallLimits(timeout_s=60, max_message_bytes=1 << 20)
URI = f"file:///notes/{CANARY}"


def reports(method: str, **params: Any) -> Callable[[Exchange], None]:
    """Send a notification before the result."""

    def act(exchange: Exchange) -> None:
        token = exchange.request_json["params"]["_meta"]["progressToken"]
        told = {"jsonrpc": "2.0", "method": method, "params": {"progressToken": token, **params}}
        exchange.send_events(told, result(exchange.request_json, {"content": [{"type": "text", "text": "***"}]}))

    return act


def asks(exchange: Exchange) -> None:
    request = {"method": "elicitation/create", "params": {"message": CANARY, "requestedSchema": {"type": "object"}}}
    content = {"resultType": "input_required", "inputRequests": {"a": request}, "requestState": CANARY}
    exchange.send_json(result(exchange.request_json, content))


HTTP: dict[str, Callable[[Exchange], None]] = {
    "text": answers({"content": [{"type": "text", "text": f"key {CANARY}"}]}),
    "structured content": answers({"content": [], "structuredContent": {CANARY: [{"key": CANARY}]}}),
    "metadata": answers({"content": [{"type": "text", "text": "***"}], "_meta": {"example.org/key": CANARY}}),
    "tool error": answers({"content": [{"type": "text", "text": CANARY}], "isError": True}),
    "embedded resource": answers({"content": [{"type": "resource", "resource": {"uri": URI, "text": CANARY}}]}),
    "link": answers({"content": [{"type": "resource_link", "name": CANARY, "uri": URI, "description": CANARY}]}),
    "unknown block": answers({"content": [{"type": CANARY}]}),
    "odd structured content": answers({"content": [], "structuredContent": [{CANARY: CANARY}]}),
    "error code": lambda exchange: exchange.send_json(
        {"id": exchange.request_json["id"], "error": {"code": CANARY, "message": {"m": CANARY}}}
    ),
    "odd result": answers([CANARY]),
    "cut answer": lambda exchange: exchange.send(200, json.dumps({"result": CANARY}).encode()[:-1]),
    "JSON-RPC error": lambda exchange: exchange.send_json(failure(exchange.request_json, -32603, CANARY, data=CANARY)),
    "error with a status": lambda exchange: exchange.send(
        400, json.dumps(failure(exchange.request_json, -32602, f"no {CANARY}")).encode()
    ),
    "progress": reports("notifications/progress", progress=1, message=f"connecting with {CANARY}"),
    "log": reports("notifications/message", level="error", data=f"connecting with {CANARY}"),
    "redirect": lambda exchange: exchange.send(302, location=f"http://127.0.0.1/{CANARY}"),
    "page": lambda exchange: exchange.send(500, f"<p>{CANARY}</p>".encode(), "text/html"),
    "no JSON": lambda exchange: exchange.send(200, f"{{{CANARY}".encode()),
    "question": asks,
}

PROGRAM = """
import json, os, sys
sys.path.insert(0, {path!r})
from tests.support.hostile.messages import answer, one_page, tool
for request in map(json.loads, sys.stdin):
    if request.get("method") == "tools/call":
        print("cannot connect with", os.environ["API_KEY"], "x" * {fill}, file=sys.{way}, flush=True)
        sys.exit(3)
    elif reply := answer(request, one_page(tool("one"))):
        print(json.dumps(reply), flush=True)
"""


def child(way: str, fill: int = 0) -> StdioTarget:
    program = PROGRAM.format(path=sys.path[0], way=way, fill=fill)
    return StdioTarget(sys.executable, ("-c", program), {"API_KEY": CANARY})


async def seen(target: Target, caplog: pytest.LogCaptureFixture, logs: Path | None = None) -> str:
    """Return all that a caller and the log get from a call, and from the read of each link in its result."""
    told: list[object] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told.append(message)

    dialler = Dialler({"srv": target}, frozenset(), None, {}, logs=logs)
    service = service_of(catalogue_of([ONE]), Upstreams(dialler.target, LIMITS))
    with caplog.at_level(logging.DEBUG), structlog.testing.capture_logs() as lines:
        async with Client(service, mode="legacy") as client:
            answer = await client.call_tool("call_tool", {"tool_name": "srv:one"}, progress_callback=note)
            told.append(answer.model_dump_json(by_alias=True))
            for block in answer.content:
                if block.type == "resource_link":
                    try:
                        told.append((await client.read_resource(block.uri)).model_dump_json())
                    except MCPError as error:
                        told.append(f"{error.message} {error.data}")
    return "\n".join(map(str, [*told, lines]))


def holds(text: str) -> bool:
    """Return whether a text has eight characters of the credential in a row, in either spelling."""
    spellings = (CANARY, json.dumps(CANARY)[1:-1])
    return any(spelt[at : at + 8] in text for spelt in spellings for at in range(len(spelt) - 7))


@pytest.mark.parametrize("path", HTTP)
async def test_no_path_over_http_shows_a_credential(path: str, caplog: pytest.LogCaptureFixture) -> None:
    def respond(exchange: Exchange) -> None:
        if exchange.method == "tools/call":
            HTTP[path](exchange)
        elif exchange.method == "resources/read":
            exchange.send_json(failure(exchange.request_json, -32002, f"no resource {CANARY}"))
        else:
            exchange.play(GOOD)

    with scripted_http(respond) as server:
        text = await seen(HttpTarget(server.url, headers=HEADERS), caplog)

    assert not holds(text)
    assert "***" in text or path in ("page", "log", "question", "no JSON")


@pytest.mark.parametrize("fill", [0, 560, 590, 2_020])
async def test_last_words_show_no_part_of_a_credential(
    fill: int, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    text = await seen(child("stderr", fill), caplog, tmp_path)

    assert not holds(text)
    assert not holds("\n".join(last_lines(tmp_path, "srv", 100)))


async def test_a_line_that_is_no_message_shows_no_credential(caplog: pytest.LogCaptureFixture) -> None:
    assert not holds(await seen(child("stdout"), caplog))
