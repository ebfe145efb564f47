"""A result with one odd part arrives without that part, which is named; the caller learns that the tool has run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.types import CallToolResult, ListToolsResult
from mcp_types.methods import parse_server_result, validate_server_result

from shared.upstream.odd_results import readable
from tests.edges.raw_answers import answering, called, texts
from workers.fetch.definitions import Limits
from workers.fetch.session import fetch_tools_blocking

ROWS = [{"id": 1}, {"id": 2}]
TEXT = {"type": "text", "text": "kept"}
OLDER, MODERN = "2025-06-18", "2026-07-28"

# Each with what arrives, and what is named.
RESULTS: dict[str, tuple[Any, tuple[str, ...], tuple[str, ...]]] = {
    "an array": ({"content": [TEXT], "structuredContent": ROWS}, ("kept", '"id": 2'), ()),
    "an array, which the text repeats": (
        {"content": [{"type": "text", "text": json.dumps(ROWS)}], "structuredContent": ROWS},
        ('"id": 2',),
        (),
    ),
    "a text": ({"content": [], "structuredContent": "forty"}, ("forty",), ()),
    "a number": ({"content": [TEXT], "structuredContent": 42}, ("kept", "42"), ()),
    "no content": ({"structuredContent": {"rows": ROWS}}, ('"id": 2',), ()),
    "null content": ({"content": None, "structuredContent": {"rows": ROWS}}, ('"id": 2',), ()),
    "nothing": ({}, (), ("content",)),
    "a text as content": ({"content": "kept"}, ("kept",), ()),
    "an object as content": ({"content": TEXT}, ("kept",), ()),
    "texts as content": ({"content": ["kept", "and this"]}, ("kept", "and this"), ()),
    "a number as content": ({"content": 42}, ("42",), ()),
    "the first form": ({"toolResult": {"content": [TEXT]}}, ("kept",), ()),
    "the first form with data": ({"toolResult": {"rows": ROWS}}, ('"id": 2',), ()),
    "the first form with a text": ({"toolResult": "kept"}, ("kept",), ()),
    "a null text": ({"content": [TEXT, {"type": "text", "text": None}]}, ("kept",), ("content[1]",)),
    "an object as a text": ({"content": [{"type": "text", "text": {"rows": ROWS}}]}, ('"id": 2',), ()),
    "a number as a text": ({"content": [{"type": "text", "text": 42}]}, ("42",), ()),
    "a new type": ({"content": [TEXT, {"type": "video", "data": "AAAA"}]}, ("kept",), ("content[1]", "video")),
    "a type of another case": ({"content": [TEXT, {"type": "Text", "text": "x"}]}, ("kept",), ("content[1]", "Text")),
    "a block without a type": ({"content": [{"text": "untyped"}, TEXT]}, ("kept", "untyped"), ()),
    "a null block": ({"content": [None, TEXT]}, ("kept",), ("content[0]",)),
    "a picture without its type": ({"content": [TEXT, {"type": "image", "data": "AAAA"}]}, ("kept",), ("content[1]",)),
    "a picture at a URL": (
        {"content": [TEXT, {"type": "image", "url": "https://example.org/a.png"}]},
        ("kept",),
        ("content[1]", "https://example.org/a.png"),
    ),
    "null flags": (
        {"content": [{**TEXT, "annotations": None, "_meta": None}], "isError": None, "_meta": None},
        ("kept",),
        (),
    ),
    "odd annotations": ({"content": [{**TEXT, "annotations": {"priority": "high"}}]}, ("kept",), ("content[0]",)),
    "an odd flag": ({"content": [TEXT], "isError": "maybe"}, ("kept",), ("isError", "maybe")),
    "odd metadata": ({"content": [TEXT], "_meta": ["x"]}, ("kept",), ("_meta",)),
    "a null in annotations": ({"content": [{**TEXT, "annotations": {"audience": None}}]}, ("kept",), ()),
    "a resource without a text": (
        {"content": [TEXT, {"type": "resource", "resource": {"uri": "file:///a"}}]},
        ("kept",),
        ("content[1]", "file:///a"),
    ),
}


@pytest.mark.process
@pytest.mark.anyio
@pytest.mark.parametrize("transport", ["stdio", "json", "events"])
@pytest.mark.parametrize("name", RESULTS)
async def test_the_readable_parts_of_a_result_arrive(name: str, transport: str) -> None:
    sent, arrives, named = RESULTS[name]
    raw = json.dumps({"jsonrpc": "2.0", "id": 0, "result": sent}).replace('"id": 0', '"id": ID', 1).encode()

    with answering(transport, raw) as target:
        (result,) = await called(target)

    shown = texts(result)
    assert not result.is_error
    assert not [part for part in (*arrives, *named) if part not in shown], shown
    assert ("has run" in shown) == bool(named)


@pytest.mark.process
@pytest.mark.anyio
async def test_what_is_not_readable_at_all_is_said_to_have_run() -> None:
    raw = b'{"jsonrpc":"2.0","id":ID,"result":{"resultType":7,"content":[]}}'

    with answering("stdio", raw) as target:
        (result,) = await called(target)

    assert "carried out" in texts(result) or not result.is_error


HANDSHAKES: dict[str, dict[str, Any]] = {
    "null capabilities": {"capabilities": {"tools": {}, "logging": None}, "serverInfo": {"name": "s", "version": "1"}},
    "capabilities as flags": {"capabilities": {"tools": True, "prompts": False}, "serverInfo": {"name": "s"}},
    "no capabilities": {"serverInfo": {"name": "s", "version": "1"}},
    "a list of capabilities": {"capabilities": ["tools"], "serverInfo": {"name": "s", "version": "1"}},
    "no name": {"capabilities": {"tools": {}}},
    "a number as the version": {"capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": 1.2}},
    "null instructions": {"capabilities": {}, "serverInfo": {"name": "s", "version": "1"}, "instructions": None},
}


def handshake(name: str) -> bytes:
    sent = {"protocolVersion": OLDER, **HANDSHAKES[name]}
    return b'{"jsonrpc":"2.0","id":ID,"result":%s}' % json.dumps(sent).encode()


@pytest.mark.process
@pytest.mark.parametrize("transport", ["stdio", "json"])
@pytest.mark.parametrize("name", HANDSHAKES)
def test_a_server_with_an_odd_handshake_is_listed(name: str, transport: str) -> None:
    with answering(transport, handshake(name), "initialize") as target:
        listing = fetch_tools_blocking("srv", target, Limits(timeout_s=60))

    assert [tool.name for tool in listing.tools] == ["one", "two"]


@pytest.mark.process
@pytest.mark.anyio
@pytest.mark.parametrize("transport", ["stdio", "json"])
@pytest.mark.parametrize("name", HANDSHAKES)
async def test_a_server_with_an_odd_handshake_is_called(name: str, transport: str) -> None:
    with answering(transport, handshake(name), "initialize") as target:
        (result,) = await called(target)

    assert "unknown method tools/call" in texts(result)


LISTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "tools/list": ("tools", {"name": "good", "inputSchema": {"type": "object"}}, {"name": "odd", "inputSchema": 7}),
    "prompts/list": ("prompts", {"name": "good"}, {"name": "odd", "arguments": "none"}),
    "resources/list": ("resources", {"name": "good", "uri": "file:///a"}, {"name": "odd"}),
    "resources/templates/list": ("resourceTemplates", {"name": "good", "uriTemplate": "a{b}"}, {"name": "odd"}),
}


@pytest.mark.parametrize("method", LISTS)
def test_an_odd_entry_of_a_list_is_left_out_and_named(method: str) -> None:
    key, good, odd = LISTS[method]

    read, left_out = readable(method, OLDER, {key: [odd, {**good, "description": None}, None], "nextCursor": None}, str)

    assert [entry["name"] for entry in read[key]] == ["good"]
    assert len(left_out) == 2
    assert f"{key}[0]" in left_out[0]
    parse_server_result(method, OLDER, read)


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("prompts/get", {"messages": [{"role": "user", "content": {**TEXT, "_meta": None}}], "description": None}),
        ("resources/read", {"contents": [{"uri": "file:///a", "text": "x", "mimeType": None}], "_meta": None}),
        ("completion/complete", {"completion": {"values": ["a"], "total": None, "hasMore": None}}),
    ],
)
def test_null_flags_of_other_results_are_dropped(method: str, result: dict[str, Any]) -> None:
    read, left_out = readable(method, OLDER, result, str)

    assert not left_out
    parse_server_result(method, OLDER, read)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "text", "x", "audio", "2.0"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "data", "mimeType", "uri", "name", "resource", "annotations", "_meta"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
blocks = st.lists(json_values | st.just(TEXT), max_size=4)


@given(
    content=blocks | json_values,
    more=st.dictionaries(st.sampled_from(["structuredContent", "isError", "_meta", "toolResult"]), json_values),
    version=st.sampled_from([OLDER, MODERN]),
)
def test_any_result_of_a_tool_can_be_read(content: object, more: dict[str, Any], version: str) -> None:
    result = {"content": content, **more}

    read, left_out = readable("tools/call", version, result, str)

    validate_server_result("tools/call", version, read)
    parsed = CallToolResult.model_validate(read, by_name=False)
    kept = content.count(TEXT) if isinstance(content, list) else 0
    assert sum(getattr(block, "text", None) == "kept" for block in parsed.content) >= kept
    assert all(part.partition(":")[0] in texts(parsed) for part in left_out[:10])


@given(tools=st.lists(json_values | st.just({"name": "good", "inputSchema": {"type": "object"}}), max_size=4))
def test_any_list_of_tools_can_be_read(tools: list[Any]) -> None:
    read, left_out = readable("tools/list", OLDER, {"tools": tools}, str)

    assert len(ListToolsResult.model_validate(read, by_name=False).tools) + len(left_out) == len(tools)
