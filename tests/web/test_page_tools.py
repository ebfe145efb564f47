"""The page of a tool: its servers and neighbours are linked, and it stays within the scope."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from query.caller import PERMISSIONS
from query.usage.usage import RowKey, Usage, today
from shared.catalog import Encoding, IndexedTool, ToolDefinition, point_id
from shared.text.tokens import count_forms, counter, json_text
from shared.toolset import Toolset
from tests.support.fakes import FakeIndex, make_tool
from tests.support.http_callers import app_of, entry, http_client, static
from tests.support.pages import blocks, get, text
from tests.support.policies import policy, rule
from tests.support.replicated import put_server
from tests.support.replicated import tool as replicated_tool

pytestmark = pytest.mark.anyio

ENCODING: Encoding = "cl100k_base"
HOSTILE = '"><script>alert(1)</script>\u202e{{ 7*191 }}\n</pre><b>'


def counted(definition: Mapping[str, object]) -> IndexedTool:
    """Return a tool of the server `clock` with its true counts."""
    parsed = ToolDefinition.from_wire(json_text(definition))
    wire, model = count_forms(parsed, {ENCODING: counter(ENCODING)})
    return replace(make_tool("clock"), definition=parsed, token_counts=wire, model_counts=model)


GET_TIME: dict[str, object] = {
    "name": "get_time",
    "title": "Get the time",
    "description": "Tell the time in a time zone.",
    "inputSchema": {
        "type": "object",
        "properties": {"zone": {"type": "string", "description": "IANA name"}, "name": {"type": "string"}},
        "required": ["zone"],
    },
    "outputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True},
}


def clock() -> FakeIndex:
    index = FakeIndex()
    put_server(index, "clock", [counted(GET_TIME), replicated_tool("set_time", "Set the time")], "clock")
    put_server(index, "files", [replicated_tool("read_file", "Read a file")], "files")
    return index


# --- the page ---


async def test_a_tool_shows_its_tokens_its_definition_and_its_server() -> None:
    index = clock()

    page = await get(index, "/ui/tools/clock%3Aget_time")

    tool = counted(GET_TIME)
    assert page.status_code == 200
    counts = f"as a model sees it {tool.model_counts[ENCODING]} Tokens, as sent {tool.token_counts[ENCODING]} "
    assert counts in text(page)
    assert [json.loads(form) for form in blocks(page)] == [
        {key: GET_TIME[key] for key in ("name", "description", "inputSchema")},
        GET_TIME,
    ]
    assert 'href="/ui/servers/clock"' in page.text


async def test_a_long_definition_is_cut() -> None:
    index = FakeIndex()
    properties = {f"parameter{number:03}": {"type": "string", "description": "x" * 300} for number in range(150)}
    tool = counted({"name": "t", "description": "Do it", "inputSchema": {"properties": properties}})
    put_server(index, "clock", [tool])

    page = await get(index, "/ui/tools/clock%3At")

    assert "Cut: it has 57,842 characters" in text(page)


async def test_the_nearest_tools_are_linked_with_their_cosine_and_without_the_tool_itself() -> None:
    near = (await get(clock(), "/ui/tools/clock%3Aget_time")).text.partition('id="near"')[2]

    assert re.findall(r'href="/ui/tools/(.*?)"', near) == ["clock%3Aset_time", "files%3Aread_file"]
    assert [float(cosine) for cosine in re.findall(r'"n">(\d\.\d\d)<', near)] == pytest.approx([0.4, 0.1], abs=0.3)


async def test_an_equal_definition_is_no_neighbour() -> None:
    index = clock()
    put_server(index, "other", [counted(GET_TIME), replicated_tool("extra")], "clock")

    near = (await get(index, "/ui/tools/clock%3Aget_time")).text.partition('id="near"')[2]

    assert "get_time" not in near


async def test_a_tool_of_replicas_names_them_and_sums_their_calls(usage: Usage) -> None:
    index = FakeIndex()
    for number in range(3):
        put_server(index, f"web{number}", [replicated_tool("echo")])
    counts = {"answers": 1, "calls": 2, "failed_calls": 1, "bytes": 512, "ms": 30}
    rows = {RowKey(today(), "ann", f"web{number}", "echo"): counts for number in range(2)}
    usage.add({**rows, RowKey(today(), "ann", "web0", "other"): {"answers": 9, "calls": 9}})

    page = text(await get(index, "/ui/tools/web1%3Aecho", usage))

    assert "3 servers serve it; a call goes to one that answers. web0 listed web1 listed web2 listed" in page
    assert "Name for calls echo" in page
    assert "Calls in 30 days 4 Failed calls 2 Mean duration of a call 15 ms In answers 2 Results 1.0 KiB" in page


async def test_a_tool_of_a_stopped_server_is_shown_with_that_state() -> None:
    index = FakeIndex()
    put_server(index, "web", [replicated_tool("echo")], status="stopped")
    index.set_status_and_groups("web", status="stopped", groups=frozenset())

    page = text(await get(index, "/ui/tools/web%3Aecho"))

    assert "echo stopped" in page
    assert "Name for calls web:echo" in page


@pytest.mark.parametrize(
    "name", ["get_time", "clock%3Anone", "%3A", "%00", f"{point_id('clock', 'get_time')}", "../../etc"]
)
async def test_a_name_of_no_tool_has_no_page(name: str) -> None:
    assert (await get(clock(), f"/ui/tools/{name}")).status_code == 404


async def test_a_server_links_to_its_tools() -> None:
    index = FakeIndex()
    put_server(index, "clock", [replicated_tool("a/b?c#d")])

    page = await get(index, "/ui/servers/clock")

    assert 'href="/ui/tools/clock%3Aa%2Fb%3Fc%23d"' in page.text
    assert (await get(index, "/ui/tools/clock%3Aa%2Fb%3Fc%23d")).status_code == 200


async def test_nothing_in_a_definition_becomes_markup() -> None:
    index = FakeIndex()
    definition = {"name": "t", "description": HOSTILE, "inputSchema": {"properties": {HOSTILE: {"const": HOSTILE}}}}
    put_server(index, "clock", [counted(definition | {HOSTILE: 1})])

    page = await get(index, "/ui/tools/clock%3At")

    assert page.status_code == 200
    assert not re.search(r"<script|<b>|\u202e|1337", page.text)
    assert "&lt;script&gt;alert(1)" in page.text
    assert page.text.count("</pre>") == 2


# --- access ---


async def test_a_caller_sees_only_the_tools_neighbours_and_calls_of_its_scope(tmp_path: Path, usage: Usage) -> None:
    index = FakeIndex()
    put_server(index, "clock", [replicated_tool("get_time")], "clock", groups=frozenset({"team"}))
    put_server(index, "files", [replicated_tool("read_file")], "files", groups=frozenset({"other"}))
    calls = {"answers": 0, "calls": 3, "bytes": 0}
    usage.add({RowKey(today(), caller, "clock", "get_time"): calls for caller in ("ann", "bob")})
    known = static(tmp_path / "t.toml", ann=entry("good", groups=["team"]))

    async with http_client(app_of(index, known, usage=usage), "good") as http:
        own, foreign, none = [
            await http.get(f"/ui/tools/{name}") for name in ("clock:get_time", "files:read_file", "files:none")
        ]

    assert "Calls in 30 days 3 " in text(own)
    assert "files" not in own.text
    assert foreign.status_code == 404
    assert foreign.content == none.content


async def test_denied_tools_are_marked_for_who_may_operate_and_hidden_from_others(tmp_path: Path) -> None:
    reading = sorted(PERMISSIONS - {"operate"})
    known = static(tmp_path / "t.toml", root=entry("root"), ann=entry("ann", permissions=reading))
    denied = policy(rule(tools=["set_*"]))

    servers: dict[str, str] = {}
    tools: dict[str, httpx2.Response] = {}
    for token in ("root", "ann"):
        async with http_client(app_of(clock(), known, read_policy=lambda: denied), token) as http:
            servers[token] = text(await http.get("/ui/servers/clock"))
            tools[token] = await http.get("/ui/tools/clock:set_time")

    assert "set_time denied" in servers["root"]
    assert "set_time listed denied" in text(tools["root"])
    assert "get_time" in servers["ann"]
    assert "set_time" not in servers["ann"]
    assert tools["ann"].status_code == 404


async def test_a_caller_with_a_toolset_sees_no_other_tool_of_the_server(tmp_path: Path) -> None:
    index = clock()
    index.put_toolset(Toolset(name="dev", tools=("clock:get_time",)))
    known = static(tmp_path / "t.toml", dev=entry("dev", toolset="dev"))

    async with http_client(app_of(index, known), "dev") as http:
        pages = [await http.get(f"/ui/tools/clock:{name}") for name in ("get_time", "set_time")]

    assert [page.status_code for page in pages] == [200, 404]
    assert "set_time" not in pages[0].text
