"""Replicas of the query service are processes that share Redis and nothing else."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.types import CallToolResult, TextContent

from query.answers.pages import REST_LOST
from query.find import FURTHER_LOST
from query.tool import CURSOR_STORE_UNAVAILABLE
from shared.settings import load_settings
from shared.text.embedding import FastEmbedder
from tests.query.test_query_process import query_process, url_of
from tests.support.fakes import ingested, make_tool
from tests.support.indexes import open_index
from tests.support.ports import free_port
from tests.support.redis_server import redis_process, wait_until_up
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.anyio, pytest.mark.redis]

QUESTION = {"tool_description": "read a file", "limit": 12}
LONG = "Reads a file. " + " ".join(f"word{number}" for number in range(4_000))
TOOLS = [make_tool("files", f"read_{number}", f"Read file {number}", tokens=30) for number in range(30)]
TOOLS.append(make_tool("files", "explain", LONG, tokens=20_000))


@pytest.fixture(scope="module")
def catalogues(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return two directories with the same tools: what two replicas see of one Qdrant server."""
    embedder = FastEmbedder()
    tools = [ingested(tool, embedder) for tool in TOOLS]
    directories = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    for directory in directories:
        with closing(open_index(load_settings(data_dir=directory), embedder.model, embedder.dimension)) as index:
            index.upsert(tools)
    return directories


def started(stack: ExitStack, directory: Path, **settings: str) -> str:
    return url_of(stack.enter_context(query_process(directory, **settings)))


@pytest.fixture
def replicas(catalogues: list[Path], redis_url: str) -> Iterator[list[str]]:
    with ExitStack() as stack:
        yield [started(stack, directory, REDIS_URL=redis_url) for directory in catalogues]


async def call(url: str, tool: str, arguments: dict[str, Any]) -> CallToolResult:
    async with Client(url) as client:
        return await client.call_tool(tool, arguments)


def texts(result: CallToolResult) -> list[str]:
    return [block.text for block in result.content if isinstance(block, TextContent)]


@pytest.mark.slow
async def test_one_replica_goes_on_where_another_ended(replicas: list[str]) -> None:
    names: list[str] = []
    arguments: dict[str, Any] = dict(QUESTION)
    for turn in range(3):
        answer: dict[str, Any] = (await call(replicas[turn % 2], "find_tool", arguments)).structured_content
        names += [tool["name"] for tool in answer["tools"]]
        arguments["cursor"] = answer.get("nextCursor")

    assert arguments["cursor"] is None
    assert sorted(names) == sorted(tool.qualified_name for tool in TOOLS)


async def test_what_one_replica_kept_another_reads_on(replicas: list[str]) -> None:
    first = await call(replicas[0], "describe_tool", {"names": "files:explain"})
    text, notice = texts(first)
    read = text
    for turn in range(1, 20):
        result = await call(replicas[turn % 2], "describe_tool", {"cursor": json.loads(notice)["nextCursor"]})
        text, *rest = texts(result)
        read += text
        if not rest:
            break
        (notice,) = rest

    assert json.loads(read)["tools"][0]["description"] == LONG


@pytest.mark.slow
async def test_the_page_of_one_replica_shows_what_another_saved_and_goes_on_where_its_page_ended(
    replicas: list[str],
) -> None:
    first, second = (replica.removesuffix("/mcp") for replica in replicas)
    await call(replicas[0], "find_tool", QUESTION)
    async with httpx2.AsyncClient(trust_env=False) as http:
        found = (await http.get(f"{first}/ui/find?q=read+a+file")).text
        more = re.search(r'rel="next" href="(.*?)"', found)
        assert more
        further = await http.get(second + html.unescape(more[1]))

    names = re.compile(r"<bdi>(read_[0-9]+)</bdi>")
    assert further.status_code == 200
    assert set(names.findall(further.text)).isdisjoint(names.findall(found))
    eventually(lambda: not re.search(r"\b0 searches", overview(second)), what="the search on the other's page")


def overview(address: str) -> str:
    return httpx2.get(f"{address}/ui", trust_env=False).text


@pytest.mark.slow
async def test_while_redis_is_down_tools_are_found_and_answers_say_that_their_further_pages_are_lost(
    catalogues: list[Path], tmp_path: Path
) -> None:
    port = free_port()
    redis_url = f"redis://127.0.0.1:{port}/0"
    with ExitStack() as stack, ExitStack() as first_redis:
        first_redis.enter_context(redis_process(tmp_path, port=port))
        wait_until_up(redis_url)
        url = started(stack, catalogues[0], REDIS_URL=redis_url)
        before: dict[str, Any] = (await call(url, "find_tool", QUESTION)).structured_content
        first_redis.close()

        answer: dict[str, Any] = (await call(url, "find_tool", QUESTION | {"limit": 11})).structured_content
        long = texts(await call(url, "describe_tool", {"names": "files:explain"}))
        refused = await call(url, "find_tool", {**QUESTION, "cursor": before["nextCursor"]})

        assert (len(answer["tools"]), answer.get("nextCursor"), answer["warnings"][-1]) == (11, None, FURTHER_LOST)
        assert json.loads(long[-1]) == {"warnings": [REST_LOST]}
        assert (refused.is_error, texts(refused)) == (True, [CURSOR_STORE_UNAVAILABLE])
        stack.enter_context(redis_process(tmp_path, port=port))
        wait_until_up(redis_url)
        again: dict[str, Any] = (await call(url, "find_tool", QUESTION | {"limit": 11})).structured_content
        assert again["nextCursor"]
