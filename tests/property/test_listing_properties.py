"""What `list_available_tools` promises of any catalogue, and while it changes, and that a toolset bounds everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from query.caller import Caller
from query.catalogue import Catalogue
from query.find import find_tool
from query.savings.ledger import Ledger
from query.search.request import FindRequest
from query.tools.describe_tool import DescribeRequest, describe_tools
from query.tools.listing import ListRequest, list_tools
from query.toolsets.active import with_toolset
from shared.catalog import FEATURES_VERSION, Endpoint, IndexedTool, Scope, ServerRecord
from shared.toolset import Toolset
from tests.support.fakes import FakeEmbedder, FakeIndex, ingested, make_tool
from tests.support.profiles import examples

WORDS = ("read", "send", "search", "convert", "file", "mail", "time")
SERVERS = ("a", "b", "c", "d")
EVERYTHING = Scope()

names = st.sampled_from(WORDS)
fleets = st.dictionaries(
    st.tuples(st.sampled_from(SERVERS), names), st.integers(1, 500) | st.none(), min_size=1, max_size=20
)


def index_of(fleet: dict[tuple[str, str], int | None]) -> FakeIndex:
    index = FakeIndex()
    for (server, name), tokens in fleet.items():
        put(index, make_tool(server, name, f"{name} something", tokens or {}))
    return index


def put(index: FakeIndex, tool: IndexedTool) -> None:
    """Write a tool, and its server's record as a reconciliation would."""
    index.upsert([ingested(tool, FakeEmbedder())])
    note(index, tool.server_id)


def note(index: FakeIndex, server: str) -> None:
    tools = index.tools(Scope(servers=frozenset({server})), limit=1_000).tools
    record = ServerRecord(
        server_id=server,
        endpoint=Endpoint(),
        features_version=FEATURES_VERSION,
        last_listed_at=1.0,
        tool_count=len(tools),
        tokens={"cl100k_base": sum(tool.token_counts.get("cl100k_base", 0) for tool in tools)},
        revision=1 + max((record.revision for record in index.servers()), default=0),
    )
    index.put_server(record)


def catalogue_of(index: FakeIndex) -> Catalogue:
    return Catalogue(index, FakeEmbedder(), Ledger(index), no_match_threshold=-1)


def all_pages(
    catalogue: Catalogue, between: Callable[[], object] = tuple, allowed: Scope = EVERYTHING, **request: Any
) -> list[dict[str, Any]]:
    asked = ListRequest(**request)
    pages = [list_tools(asked, allowed, catalogue, "ann")]
    while "nextCursor" in pages[-1]:
        between()
        again = asked.model_copy(update={"cursor": pages[-1]["nextCursor"]})
        pages.append(list_tools(again, allowed, catalogue, "ann"))
    return pages


def listed(pages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [
        (server["server"], tool["name"])
        for page in pages
        for server in page["toolsByServer"]
        for tool in server["tools"]
    ]


@settings(deadline=None)
@given(fleet=fleets, max_tokens=st.integers(200, 1_000), detail=st.sampled_from(("name", "summary", "detailed")))
def test_parts_of_the_context_sum_to_one_and_a_part_without_a_count_is_null(
    fleet: dict[tuple[str, str], int | None], max_tokens: int, detail: str
) -> None:
    pages = all_pages(catalogue_of(index_of(fleet)), max_tokens=max_tokens, detail=detail)

    total = sum(tokens or 0 for tokens in fleet.values())
    servers = {
        server["server"]: server["context"]["percentTotal"] for page in pages for server in page["toolsByServer"]
    }
    tools = [tool["context"] for page in pages for server in page["toolsByServer"] for tool in server["tools"]]
    parts = [tool["percentTotal"] for tool in tools if tool["percentTotal"] is not None]
    assert all((tool["percentTotal"] is None) == (tool["tokens"] is None or total == 0) for tool in tools)
    assert pages[0]["meta"]["totalPossibleContext"] == total
    if total:
        assert abs(sum(parts) - 1) <= 1e-6 * len(tools)
        assert abs(sum(servers.values()) - 1) <= 1e-6 * len(servers)
        assert pages[0]["meta"]["context"]["percentTotal"] == 1
    else:
        assert set(servers.values()) == {None}


@settings(max_examples=examples(60), deadline=None)
@given(fleet=fleets, changes=st.lists(st.tuples(st.booleans(), st.sampled_from(SERVERS), names), max_size=20))
def test_while_tools_come_and_go_none_is_listed_twice_and_none_that_stays_is_left_out(
    fleet: dict[tuple[str, str], int | None], changes: list[tuple[bool, str, str]]
) -> None:
    index, left = index_of(fleet), iter(changes)

    def change() -> None:
        for comes, server, name in left:
            if comes:
                put(index, make_tool(server, name))
            else:
                index.delete(server, [name])
                note(index, server)
            return

    pages = all_pages(catalogue_of(index), change, max_tokens=200)

    seen = listed(pages)
    gone = {(server, name) for comes, server, name in changes if not comes}
    assert len(seen) == len(set(seen))
    assert set(fleet) - gone <= set(seen)


@settings(max_examples=examples(60), deadline=None)
@given(
    fleet=fleets,
    entries=st.lists(st.sampled_from([*SERVERS, *(f"{server}:{word}" for server in SERVERS for word in WORDS)])),
    asked=names,
)
def test_nothing_outside_a_toolset_is_found_listed_described_or_counted(
    fleet: dict[tuple[str, str], int | None], entries: list[str], asked: str
) -> None:
    catalogue = catalogue_of(index_of(fleet))
    caller = with_toolset(Caller("ann"), Toolset(name="t", tools=tuple(entries)))
    inside = {tool: tokens for tool, tokens in fleet.items() if tool[0] in entries or ":".join(tool) in entries}

    pages = all_pages(catalogue, allowed=caller.scope)
    found, _ = find_tool(FindRequest(tool_description=asked, limit=50), caller.scope, catalogue, caller)
    described = describe_tools(DescribeRequest(names=[":".join(tool) for tool in fleet]), caller.scope, catalogue)

    assert set(listed(pages)) == set(inside)
    assert pages[0]["meta"]["totalPossibleContext"] == sum(tokens or 0 for tokens in inside.values())
    assert {(tool.server, tool.name) for tool in found.tools} <= set(inside)
    assert found.token_metrics.baseline_tokens == sum(tokens or 0 for tokens in inside.values())
    assert {(tool.server, tool.name) for tool in described.tools} == set(inside)
    assert {name for problem in described.not_found or () for name in problem.candidates or ()} <= {
        ":".join(tool) for tool in inside
    }
