"""The page of a search: the answer that an agent gets, its cost beside that of all tools, and calls to copy."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from unittest.mock import patch

import pytest
from mcp.types import TextContent

from query.kept import LONGEST_NAME
from shared.text.tokens import counter
from shared.toolset import Toolset
from tests.support.calling import upstreams_to
from tests.support.fakes import FakeIndex
from tests.support.http_callers import app_of, entry, http_client, mcp_client, static
from tests.support.pages import blocks, get, text
from tests.support.replicated import put_server, tool

pytestmark = pytest.mark.anyio

QUESTION = {"tool_description": "tell the time"}
PATH = "/ui/find?q=tell+the+time"


@pytest.fixture
def index() -> FakeIndex:
    index = FakeIndex()
    put_server(index, "clock", [tool("get_time", "Tell the time", 30), tool("set_time", "Set the time", 20)], "clock")
    put_server(index, "files", [tool("read_file", "Read a file", 50)], "files")
    return index


# --- the answer ---


@pytest.mark.parametrize("token", ["all", "dev"])
async def test_the_page_shows_the_text_that_an_agent_gets_and_its_tokens(
    index: FakeIndex, tmp_path: Path, token: str
) -> None:
    index.put_toolset(Toolset(name="dev", tools=("clock:get_time", "clock:set_time")))
    known = static(tmp_path / "t.toml", all=entry("all"), dev=entry("dev", toolset="dev"))

    upstreams = upstreams_to({})
    app = app_of(index, known, upstreams)
    # a random cursor has a random number of tokens
    named = patch("query.find.new_name", return_value=LONGEST_NAME)
    async with http_client(app, token) as http, mcp_client(http) as client:
        with named:
            page = await http.get(PATH)
            result = await client.call_tool("find_tool", QUESTION)

    sent, answer, *_ = blocks(page)
    assert isinstance(result.content[0], TextContent)
    assert answer == result.content[0].text
    assert json.loads(sent) == QUESTION
    assert f"This answer {counter('cl100k_base')(answer)} tokens" in text(page)


async def test_the_answer_is_beside_the_cost_of_all_tools_and_the_net(index: FakeIndex) -> None:
    page = await get(index, PATH)

    found = re.search(
        r"All tools 100 tokens, .*? This answer (\d+) tokens, for \d tools? Saved, net (-?\d+) tokens", text(page)
    )
    assert found
    assert 100 - int(found[1]) == int(found[2])
    assert 'href="/ui/tools/clock%3Aget_time"' in page.text


async def test_a_further_page_claims_no_savings() -> None:
    index = FakeIndex()
    put_server(index, "clock", [tool(f"time_{number}", "Tell the time") for number in range(12)], "clock")

    async with http_client(app_of(index)) as http:
        first = await http.get(PATH)
        following = re.search(r'rel="next" href="(.*?)"', first.text)
        assert following
        second = await http.get(html.unescape(following[1]))

    assert "Saved, net" in text(first)
    assert second.status_code == 200
    assert not re.search("Saved, net|All tools", text(second))
    assert "for 4 tools" in text(second)
    assert json.loads(blocks(second)[0]).keys() == {"tool_description", "cursor"}


# --- the hits ---


async def test_the_hits_are_before_what_an_agent_gets_and_each_has_its_form(index: FakeIndex) -> None:
    page = await get(index, PATH)

    assert page.text.index('class="hits"') < page.text.index("<pre")
    assert re.findall(r'action="(/ui/tools/[^"]*)#try" method="post"', page.text) == [
        f"/ui/tools/{name}" for name in re.findall(r'class="name" href="/ui/tools/([^"]*)"', page.text)
    ]


async def test_a_bar_tells_which_tools_hardly_fit(index: FakeIndex) -> None:
    page = await get(index, PATH)

    bars = re.findall(r'class="(fill|weak)" width="([\d.]+)".*?<rect class="mark" x="([\d.]+)"', page.text)
    assert bars
    assert all((kind == "weak") == (float(width) < float(mark)) for kind, width, mark in bars if width != mark)
    assert all(0 <= float(width) <= 100 for _, width, _ in bars)
