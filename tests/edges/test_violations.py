"""Answers that violate JSON-RPC: a clear one is accepted; any other ends its call at once, with the wrong field."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

import anyio
import pytest
from mcp.types import CallToolResult

from query.calling.limits import CallLimits
from shared.errors import ServerError
from shared.upstream.target import StdioTarget
from tests.edges.raw_answers import LIMITS, SOON_S, TRANSPORTS, answering, called, texts
from tests.support.calling import calling, tool_of
from workers.fetch.definitions import Limits
from workers.fetch.session import fetch_tools_blocking

pytestmark = [pytest.mark.process]

FINE = b'{"content":[{"type":"text","text":"fine"}]}'
PYDANTIC = ("validation error", "pydantic", "input_value", "JSONRPC", "type=", "TextContent", "CallToolResult")

ACCEPTED: dict[str, bytes] = {
    "an id as a text": b'{"jsonrpc":"2.0","id":"ID","result":%s}' % FINE,
    "an id as a float": b'{"jsonrpc":"2.0","id":ID.0,"result":%s}' % FINE,
    "an id as a text of a float": b'{"jsonrpc":"2.0","id":"ID.0","result":%s}' % FINE,
    "no version": b'{"id":ID,"result":%s}' % FINE,
    "an older version": b'{"jsonrpc":"1.0","id":ID,"result":%s,"error":null}' % FINE,
    "a version as a number": b'{"jsonrpc":2.0,"id":ID,"result":%s}' % FINE,
    "an empty error beside the result": b'{"jsonrpc":"2.0","id":ID,"result":%s,"error":{}}' % FINE,
    "no id": b'{"jsonrpc":"2.0","result":%s}' % FINE,
    "a batch": b'[{"jsonrpc":"2.0","id":ID,"result":%s}]' % FINE,
    "a batch with a notification": (
        b'[{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}},'
        b'{"jsonrpc":"2.0","id":ID,"result":%s}]' % FINE
    ),
    "keys of its own": b'{"jsonrpc":"2.0","id":ID,"result":%s,"took_ms":3,"method":null}' % FINE,
}

# Each with parts that its error has: the wrong field, and what the server says.
REFUSED: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "a code as a text": (
        b'{"id":ID,"error":{"code":"ENOENT","message":"no file"}}',
        ("error.code", "ENOENT", "no file"),
    ),
    "a code as true": (b'{"jsonrpc":"2.0","id":ID,"error":{"code":true,"message":"odd"}}', ("error.code", "odd")),
    "no code": (b'{"jsonrpc":"2.0","id":ID,"error":{"message":"no file"}}', ("error.code", "no file")),
    "no message": (b'{"jsonrpc":"2.0","id":ID,"error":{"code":-32011}}', ("error.message", "-32011")),
    "a message as an object": (
        b'{"jsonrpc":"2.0","id":ID,"error":{"code":1,"message":{"de":"fort"}}}',
        ("error.message", "fort"),
    ),
    "an error as a text": (b'{"jsonrpc":"2.0","id":ID,"error":"no file"}', ("error", "no file")),
    "an error as a list": (b'{"jsonrpc":"2.0","id":ID,"error":["no file"]}', ("error", "no file")),
    "an error without an id": (b'{"jsonrpc":"2.0","error":{"code":-32603,"message":"no file"}}', ("no file",)),
    "an error with a null id": (b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"no file"}}', ("no file",)),
    "a result as a text": (b'{"jsonrpc":"2.0","id":ID,"result":"fine"}', ("result", "fine")),
    "a result as a list": (b'{"jsonrpc":"2.0","id":ID,"result":[%s]}' % FINE, ("result", "fine")),
    "a result as false": (b'{"jsonrpc":"2.0","id":ID,"result":false}', ("result", "false")),
    "a null result": (b'{"jsonrpc":"2.0","id":ID,"result":null}', ("result", "null")),
    "neither result nor error": (b'{"jsonrpc":"2.0","id":ID}', ("result",)),
    "an id that was never sent": (b'{"jsonrpc":"2.0","id":4711,"result":%s}' % FINE, ("id 4711",)),
    "an id as an object": (b'{"jsonrpc":"2.0","id":{"n":ID},"error":{"code":1,"message":"no file"}}', ("no file",)),
    "a cut line": (b'{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"te', ("cut off", "content")),
    "a cut line with its id at the end": (b'{"result":{"content":[{"type":"text","text":"fi', ("cut off", "content")),
    "a line cut at its begin": (b'{"json', ("cut off",)),
    "a cut batch": (b'[{"jsonrpc":"2.0","id":ID,"result":{', ("cut off",)),
    "a missing bracket": (b'{"jsonrpc":"2.0","id":ID,"result":{"content":[}}', ("content",)),
    "single quotes within": (b'{"jsonrpc":"2.0","id":ID,"result":{\'content\':[]}}', ("content",)),
}


@pytest.mark.anyio
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", ACCEPTED)
async def test_an_answer_of_a_clear_meaning_is_accepted(name: str, transport: str) -> None:
    with answering(transport, ACCEPTED[name]) as target:
        (result,) = await called(target)

    assert not result.is_error
    assert texts(result) == "fine"


@pytest.mark.anyio
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", REFUSED)
async def test_a_wrong_answer_ends_its_call_with_the_field_and_the_words(name: str, transport: str) -> None:
    raw, parts = REFUSED[name]
    began = time.monotonic()

    with answering(transport, raw) as target:
        first, second = await called(target, times=2)

    assert time.monotonic() - began < SOON_S
    for result in (first, second):
        assert result.is_error
        assert_names(texts(result), parts)


@pytest.mark.anyio
@pytest.mark.parametrize("transport", ["json", "events"])
@pytest.mark.parametrize(
    "raw", [b"null", b"7", b'"own words"', b"[]", b"[null]", b"{}", b'{"level":"info"}', b"<p>", b" "]
)
async def test_what_is_no_message_ends_its_call_over_http(raw: bytes, transport: str) -> None:
    began = time.monotonic()

    with answering(transport, raw) as target:
        (result,) = await called(target)

    assert time.monotonic() - began < SOON_S
    assert result.is_error
    assert_names(texts(result), ())


@pytest.mark.anyio
@pytest.mark.parametrize("raw", [b"null", b"<p>", b'{"level":"info"}'])
async def test_a_timeout_repeats_what_was_written_in_place_of_an_answer(raw: bytes) -> None:
    with answering("stdio", raw) as target:
        async with calling({"srv": target}, tool_of("srv", "one"), limits=CallLimits(timeout_s=5)) as client:
            result = await client.call_tool("call_tool", {"tool_name": "srv:one"})

    assert_names(texts(result), (raw.decode().replace('"', '\\"'),))


@pytest.mark.parametrize("transport", ["stdio", "json", "events"])
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("method", ["initialize", "tools/list"])
def test_a_wrong_answer_ends_its_listing_with_the_field_and_the_words(method: str, name: str, transport: str) -> None:
    raw, parts = REFUSED[name]
    began = time.monotonic()

    with answering(transport, raw, method) as target, pytest.raises(ServerError) as caught:
        fetch_tools_blocking("srv", target, Limits(timeout_s=45))

    assert time.monotonic() - began < SOON_S
    assert_names(str(caught.value), parts)


def assert_names(text: str, parts: Iterable[str]) -> None:
    assert not [part for part in parts if part not in text], text
    assert not [word for word in PYDANTIC if word in text], text


@pytest.mark.anyio
async def test_a_refused_answer_shows_no_credential() -> None:
    raw = b'{"jsonrpc":"2.0","id":ID,"error":{"code":"E","message":"' + b"x" * 180 + b'canary-of-the-entry"}}'
    with answering("stdio", raw) as target:
        assert isinstance(target, StdioTarget)
        (result,) = await called(StdioTarget(target.command, target.args, {"KEY": "canary-of-the-entry"}))

    assert "canary" not in texts(result)


WAITS = """
import json, sys
def put(message): print(message if isinstance(message, str) else json.dumps(message), flush=True)
calls, ids = [], []
for request in map(json.loads, sys.stdin):
    ids.append(request.get("id"))
    if request.get("method") == "tools/call":
        calls.append(request)
        if len(calls) == 2:
            exec(sys.argv[1])
    elif request.get("method") == "initialize":
        about = {"name": "s", "version": "1"}
        put({"jsonrpc": "2.0", "id": request["id"], "result": {"protocolVersion": "2025-11-25", "capabilities": {},
             "serverInfo": about}})
    elif "id" in request:
        put({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "unknown"}})
"""
FIRST_FINE = "put({'jsonrpc': '2.0', 'id': calls[0]['id'], 'result': {'content': []}});"
TOGETHER: dict[str, tuple[str, int]] = {
    "a cut line with an id": (FIRST_FINE + "put('{\"id\": %d, \"result\": {' % calls[1]['id'])", 1),
    "a cut line without an id": ('put(\'{"result": {"content": [\')', 2),
    "a batch": ("put([{'id': call['id'], 'result': {'content': []}} for call in calls])", 0),
    "a batch with a wrong answer": (
        "put([{'id': calls[0]['id'], 'result': {'content': []}}, {'id': calls[1]['id'], 'error': 'no'}])",
        1,
    ),
    "two messages on a line": (
        "put(''.join(json.dumps({'id': c['id'], 'result': {'content': []}}) for c in calls))",
        0,
    ),
}


@pytest.mark.anyio
@pytest.mark.parametrize("name", TOGETHER)
async def test_no_call_waits_where_several_are_in_flight(name: str) -> None:
    script, expected_errors = TOGETHER[name]
    target = StdioTarget(sys.executable, ("-c", WAITS, script))
    results: list[CallToolResult] = []
    began = time.monotonic()

    async with calling({"srv": target}, tool_of("srv", "one"), limits=LIMITS) as client:

        async def call() -> None:
            results.append(await client.call_tool("call_tool", {"tool_name": "srv:one"}))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            tasks.start_soon(call)

    assert time.monotonic() - began < SOON_S
    assert sum(result.is_error for result in results) == expected_errors, list(map(texts, results))


@pytest.mark.anyio
async def test_a_late_answer_ends_no_other_call() -> None:
    late = "put({'id': ids[0], 'result': {}}); put({'id': calls[0]['id'], 'result': {'content': []}})"
    async with calling(
        {"srv": StdioTarget(sys.executable, ("-c", WAITS.replace("== 2", "== 1"), late))}, tool_of("srv", "one")
    ) as client:
        result = await client.call_tool("call_tool", {"tool_name": "srv:one"})

    assert not result.is_error
