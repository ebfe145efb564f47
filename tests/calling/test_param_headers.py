"""Headers that repeat arguments, as clients of the newer revision send them over HTTP."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from mcp.types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp_types import HEADER_MISMATCH

from query.calling.call import param_headers
from shared.catalog import Endpoint, ServerRecord, ToolDefinition
from shared.toolset import Toolset
from tests.support.calling import calling, text_of, tool_of, upstreams_to
from tests.support.fakes import FakeEmbedder, FakeIndex, ingested, make_tool
from tests.support.hostile.callable_server import MARKED
from tests.support.hostile.processes import callable_stdio, callable_target
from tests.support.http_callers import URL, app_of, http_client

pytestmark = pytest.mark.anyio

REVISION = "2026-07-28"
REGIONAL = tool_of("s", "echo", words={"type": "string", "x-mcp-header": "Words"})


def index_of_regional() -> FakeIndex:
    index = FakeIndex()
    index.upsert([ingested(REGIONAL, FakeEmbedder())])
    index.put_server(ServerRecord(server_id="s", endpoint=Endpoint(), tool_count=1, revision=1))
    index.put_toolset(Toolset(name="dev", tools=("s",)))
    return index


def posted(arguments: dict[str, Any], **headers: str) -> httpx2.Request:
    meta = {
        PROTOCOL_VERSION_META_KEY: REVISION,
        CLIENT_CAPABILITIES_META_KEY: {},
        CLIENT_INFO_META_KEY: {"name": "test", "version": "1"},
    }
    params = {"name": "s__echo", "arguments": arguments, "_meta": meta}
    named = {"mcp-protocol-version": REVISION, "mcp-method": "tools/call", "mcp-name": "s__echo"}
    accept = {"accept": "application/json, text/event-stream"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return httpx2.Request("POST", f"{URL}/dev", json=body, headers={**accept, **named, **headers})


@pytest.mark.parametrize("headers", [{}, {"mcp-param-words": "farewell"}])
async def test_a_direct_call_whose_headers_do_not_repeat_its_arguments_is_refused(headers: dict[str, str]) -> None:
    upstreams = upstreams_to({"s": callable_stdio()})
    async with http_client(app_of(index_of_regional(), None, upstreams)) as http:
        answer = await http.send(posted({"words": "hello"}, **headers))

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == HEADER_MISMATCH


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "headers"),
    [
        ({"region": "eu", "shard": {"number": 7}}, {"mcp-param-region": "eu", "mcp-param-shard": "7"}),
        ({"region": "é", "words": "not repeated"}, {"mcp-param-region": "=?base64?w6k=?="}),
        ({"shard": {}}, {}),
    ],
)
async def test_a_call_of_ours_repeats_the_marked_arguments_although_no_tool_was_listed(
    arguments: dict[str, Any], headers: dict[str, str]
) -> None:
    wire = json.dumps({"name": "routed", "inputSchema": {"type": "object", "properties": MARKED}})
    routed = replace(make_tool("s", "routed"), definition=ToolDefinition.from_wire(wire))
    with callable_target("http") as target:
        async with calling({"s": target}, routed, protocol_version=REVISION) as client:
            result = await client.call_tool("call_tool", {"tool_name": "s:routed", "parameters": arguments})

    assert json.loads(text_of(result)) == headers


@pytest.mark.process
@pytest.mark.parametrize("kind", ["stdio", "legacy"])
async def test_where_no_header_repeats_arguments_none_is_sent(kind: str) -> None:
    with callable_target(kind) as target:
        async with calling({"s": target}, tool_of("s", "routed", region=MARKED["region"])) as client:
            result = await client.call_tool("call_tool", {"tool_name": "s:routed", "parameters": {"region": "eu"}})

    assert json.loads(text_of(result)) == {}


def test_a_definition_that_marks_in_a_wrong_way_has_no_headers() -> None:
    twice = {"type": "string", "x-mcp-header": "Words"}
    assert param_headers(tool_of("s", "t", a=twice, b=twice).definition, {"a": "x", "b": "y"}) == {}
