"""Groups are part of every page: no cursor leads to a foreign tool, and none opens for another caller."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, CallToolResult, TextContent

from query.answers.budget import MIN_TOKENS, ResponsePolicy
from query.caller import USING, Caller
from query.catalogue import Catalogue
from query.mcp import service_of
from query.records import Ledger
from shared.toolset import Toolset
from tests.catalogue.test_group_properties import (
    GROUPS,
    SERVERS,
    WORDS,
    Server,
    catalogue,
    fleets,
    may_see,
    mentioned,
    some_groups,
)
from tests.support.calling import text_of, upstreams_to
from tests.support.fakes import FakeEmbedder, make_tool
from tests.support.profiles import examples

Page = dict[str, Any]
Turn = Callable[[Client, str | None], Awaitable[Page]]
"""Asks for the page that a cursor leads to, or for the first."""

EVERYTHING = Toolset(name="all", tools=tuple(f"srv{number}" for number in range(SERVERS)))
# one for all, as replicas share a key: what refuses a cursor is not that another process made it
ANSWERS = ResponsePolicy(max_tokens=MIN_TOKENS)
MODES = ("legacy", "2026-07-28")
modes = st.sampled_from(MODES)


def full(number: int) -> Server:
    """Return a server of one group, with so many tools that each list of several such servers has pages."""
    server_id, groups = f"srv{number}", frozenset({GROUPS[number % len(GROUPS)]})
    tools = tuple(make_tool(server_id, word, f"{word} what there is", 25, groups) for word in WORDS)
    return Server(server_id, groups, "listed", tools)


FULL = tuple(full(number) for number in range(SERVERS))


@asynccontextmanager
async def asking(fleet: Sequence[Server], caller: Caller, mode: str) -> AsyncGenerator[Client]:
    """Yield a client by which this caller asks a service over this fleet, whose answers are as short as can be."""
    index = catalogue(fleet)
    index.put_toolset(EVERYTHING)
    # whether anything fits hangs on how rare a word is, which is counted over all tools
    over = Catalogue(index, FakeEmbedder(), Ledger(index), no_match_threshold=-1, response_policy=ANSWERS)
    upstreams = upstreams_to({})
    async with Client(service_of(over, upstreams, lambda _: caller), mode=mode) as client:
        yield client


def of_groups(groups: frozenset[str] | None, name: str = "ann") -> Caller:
    """Return a caller of these groups, whose toolset names every server that there could be."""
    return Caller(name, groups, USING, toolset="all")


async def offered(client: Client, cursor: str | None) -> Page:
    listed = await client.list_tools(cursor=cursor)
    return listed.model_dump(mode="json", by_alias=True, exclude_none=True)


def of_answers(tool: str, **arguments: Any) -> Turn:
    """Return how the pages of a tool are read that divides its own answers."""

    async def turn(client: Client, cursor: str | None) -> Page:
        page: Page = json.loads(text_of(await client.call_tool(tool, arguments | _from(cursor))))
        return page

    return turn


async def toolset(client: Client, cursor: str | None) -> Page:
    return _divided(await client.call_tool("get_active_toolset", _from(cursor)))


def _from(cursor: str | None) -> dict[str, Any]:
    return {"cursor": cursor} if cursor else {}


def _divided(result: CallToolResult) -> Page:
    """Return a page of an answer that the server divides: a part of its text, and behind it where it goes on."""
    text, *notice = [block.text for block in result.content if isinstance(block, TextContent)]
    return {"text": text} | (json.loads(notice[0]) if notice else {})


LISTS: dict[str, Turn] = {
    "tools/list": offered,
    "list_available_tools": of_answers("list_available_tools", detail="summary"),
    "find_tool": of_answers("find_tool", tool_description="read a file, send mail", limit=2),
    "get_active_toolset": toolset,
}


async def read(client: Client, name: str) -> list[Page]:
    """Return all pages of a list."""
    pages = [await LISTS[name](client, None)]
    while cursor := pages[-1].get("nextCursor"):
        pages.append(await LISTS[name](client, cursor))
    return pages


def without_cursors(pages: Sequence[Page]) -> list[Page]:
    return [{key: value for key, value in page.items() if key != "nextCursor"} for page in pages]


def comparable(name: str, pages: Sequence[Page]) -> object:
    """Return the pages without their cursors; of a search, whose order depends on all tools, what was found."""
    if name != "find_tool":
        return without_cursors(pages)
    tools = sorted(tool["name"] for page in pages for tool in page["tools"])
    # the wire baseline is at least what a page shows, and the order decides that
    metrics = pages[0]["token_metrics"]
    return tools, metrics["net_tokens_saved"] + metrics["answer_tokens"]


def all_pages(fleet: Sequence[Server], groups: frozenset[str] | None, mode: str) -> dict[str, list[Page]]:
    """Return all pages of every list, as a caller of these groups reads them."""

    async def asked() -> dict[str, list[Page]]:
        async with asking(fleet, of_groups(groups), mode) as client:
            return {name: await read(client, name) for name in LISTS}

    return anyio.run(asked)


@settings(max_examples=examples(60))
@given(fleet=fleets, groups=some_groups | some_groups | st.none(), mode=modes)
@example(FULL, frozenset({"red"}), "legacy")
@example(FULL, frozenset({"green", "blue"}), "2026-07-28")
def test_a_caller_reads_the_same_pages_as_if_foreign_servers_did_not_exist(
    fleet: tuple[Server, ...], groups: frozenset[str] | None, mode: str
) -> None:
    own = [server for server in fleet if may_see(groups, server)]

    with_others, alone = all_pages(fleet, groups, mode), all_pages(own, groups, mode)

    for name, pages in with_others.items():
        assert comparable(name, pages) == comparable(name, alone[name]), name
        assert mentioned(json.dumps(without_cursors(pages))) <= {server.server_id for server in own}, name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", LISTS)
def test_no_cursor_opens_for_another_caller(name: str, mode: str) -> None:
    async def show_to_another() -> None:
        async with (
            asking(FULL, of_groups(None), mode) as ann,
            asking(FULL, of_groups(None, "ben"), mode) as ben,
        ):
            cursors = [page["nextCursor"] for page in await read(ann, name) if "nextCursor" in page]
            assert cursors
            for cursor in cursors:
                await refused(LISTS[name](ben, cursor))

    anyio.run(show_to_another)


@settings(max_examples=examples(20))
@given(fleet=fleets, groups=some_groups, mode=modes)
def test_a_foreign_tool_of_the_toolset_cannot_be_called_directly_under_any_name_it_could_have(
    fleet: tuple[Server, ...], groups: frozenset[str], mode: str
) -> None:
    names = {*WORDS, *(f"srv{number}_{word}" for number in range(SERVERS) for word in WORDS)}

    async def call_all_others() -> None:
        async with asking(fleet, of_groups(groups), mode) as client:
            listed = {tool["name"] for page in await read(client, "tools/list") for tool in page["tools"]}
            for name in sorted(names - listed):
                await refused(client.call_tool(name, {}))

    anyio.run(call_all_others)


async def refused(asked: Awaitable[object]) -> None:
    with pytest.raises(MCPError) as error:
        await asked
    assert error.value.code == INVALID_PARAMS
    assert not mentioned(error.value.message.partition("got")[0])
