"""A response is the result of the request that it answers, or of none: not of the next caller's, on any transport."""

from __future__ import annotations

import json
import sys
from typing import Any

import anyio
import pytest
from mcp import Client

from query.calling.limits import CallLimits
from shared.upstream.target import HttpTarget, StdioTarget
from tests.support.calling import calling, text_of, tool_of
from tests.support.hostile.messages import result
from tests.support.hostile.scripted_http import Exchange, scripted_http
from tests.support.hostile.scripts import GOOD

pytestmark = [pytest.mark.process, pytest.mark.anyio]

LIMITS = CallLimits(timeout_s=20)

# which other id a server answers too, beside that of the request
OTHERS = ("same", "next", "next but one", "text", "all")

PROGRAM = """
import json, sys
which, path = {which!r}, {path!r}
sys.path.insert(0, path)
from tests.support.hostile.messages import answer, one_page, tool
def say(id, text):
    content = [{{"type": "text", "text": text}}]
    print(json.dumps({{"jsonrpc": "2.0", "id": id, "result": {{"content": content}}}}), flush=True)
for request in map(json.loads, sys.stdin):
    if request.get("method") == "tools/call":
        asked, id = request["params"]["arguments"]["asked"], request["id"]
        ids = {{"same": [id], "next": [id + 1], "next but one": [id + 2], "text": [str(id + 1)],
               "all": range(id, id + 20)}}[which]
        say(id, asked)
        for other in ids:
            say(other, "of " + asked)
    elif reply := answer(request, one_page(tool("one"))):
        print(json.dumps(reply), flush=True)
"""


def told(request_id: Any, text: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "result": {"content": [{"type": "text", "text": text}]}}


def others(which: str, request_id: Any) -> list[Any]:
    ids = {"same": [0], "next": [1], "next but one": [2], "text": [1], "all": range(20)}[which]
    return [str(request_id + each) if which == "text" else request_id + each for each in ids]


async def asks(client: Client, asked: str) -> str:
    called = await client.call_tool("call_tool", {"tool_name": "srv:one", "parameters": {"asked": asked}})
    return "" if called.is_error else text_of(called)


@pytest.mark.parametrize("which", OTHERS)
async def test_over_stdio_the_next_call_has_its_own_result(which: str) -> None:
    target = StdioTarget(sys.executable, ("-c", PROGRAM.format(which=which, path=sys.path[0])))
    async with calling({"srv": target}, tool_of("srv", "one", asked={"type": "string"}), limits=LIMITS) as client:
        found = [await asks(client, f"call {number}") for number in range(6)]

    for number, text in enumerate(found):
        assert text in ("", f"call {number}"), found
    assert found[0] == "call 0"


def answering(which: str, *, is_stream: bool) -> Any:
    def respond(exchange: Exchange) -> None:
        if exchange.method != "tools/call":
            exchange.play(GOOD)
            return
        request = exchange.request_json
        asked, own = request["params"]["arguments"]["asked"], request["id"]
        wrong = [told(other, f"of {asked}") for other in others(which, own)]
        if is_stream:
            exchange.send_events(*wrong, told(own, asked), *wrong)
        else:
            exchange.send(200, json.dumps(wrong[0]).encode())

    return respond


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("which", OTHERS[1:])
async def test_over_http_a_response_is_of_its_request_alone(which: str, is_stream: bool) -> None:
    found: dict[int, str] = {}

    async def ask(client: Client, number: int) -> None:
        found[number] = await asks(client, f"call {number}")

    with scripted_http(answering(which, is_stream=is_stream)) as server:
        tool = tool_of("srv", "one", asked={"type": "string"})
        async with calling({"srv": HttpTarget(server.url)}, tool, limits=LIMITS) as client:
            for start in (0, 4):
                async with anyio.create_task_group() as tasks:
                    for number in range(start, start + 4):
                        tasks.start_soon(ask, client, number)

    # the first one with its id, and the first of an event stream, is that of its request
    for number, text in found.items():
        assert text in ("", f"call {number}", f"of call {number}" if is_stream or which == "all" else ""), found


async def test_over_http_a_second_response_of_the_same_request_is_passed_over() -> None:
    with scripted_http(lambda exchange: _twice(exchange)) as server:
        tool = tool_of("srv", "one", asked={"type": "string"})
        async with calling({"srv": HttpTarget(server.url)}, tool, limits=LIMITS) as client:
            found = [await asks(client, f"call {number}") for number in range(3)]

    assert found == ["call 0", "call 1", "call 2"]


def _twice(exchange: Exchange) -> None:
    if exchange.method != "tools/call":
        exchange.play(GOOD)
        return
    own = result(exchange.request_json, {"content": []}) | told(
        exchange.request_json["id"], exchange.request_json["params"]["arguments"]["asked"]
    )
    exchange.send_events(own, own)
