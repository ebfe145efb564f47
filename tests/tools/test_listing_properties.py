"""What `list_available_tools` promises of any catalogue, and while it changes, and that a toolset bounds everything."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection
from itertools import islice
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from query.caller import Caller
from query.catalogue import Catalogue
from query.find import find_tool
from query.kept import Recent
from query.records import Ledger
from query.search.request import FindRequest
from query.tools.describe_tool import DescribeRequest, describe_tools
from query.tools.get_active_toolset import ToolsetRequest, toolset_report
from query.tools.list_available_tools import ListRequest, list_tools
from query.toolsets.offers import Offers, with_toolset
from shared.catalog import FEATURES_VERSION, Encoding, Endpoint, IndexedTool, Scope, ServerRecord
from shared.toolset import Toolset
from tests.support.fakes import FakeEmbedder, FakeIndex, ingested, make_tool
from tests.support.profiles import examples
from tests.support.replicated import put_server

WORDS = ("read", "send", "search", "convert", "file", "mail", "time")
SERVERS = ("a", "b", "c", "d")
EVERYTHING = Scope()
# How many times as many tokens a tool has on the wire as in the model form.
WIRE = 3
# Half of the last digit of a share, and the error of adding floats.
ROUNDED = 0.5e-4 + 1e-9
TOOL_FIELDS = {"namespacedName", "serverName", "name", "description", "context"}

Fleet = dict[tuple[str, str], int | None]
"""The tokens of the model form by server and tool; None: not counted."""

names = st.sampled_from(WORDS)
fleets = st.dictionaries(
    st.tuples(st.sampled_from(SERVERS), names), st.integers(1, 500) | st.none(), min_size=1, max_size=20
)
printable = st.text(st.characters(exclude_categories=("C", "Z")) | st.just(" "), min_size=1, max_size=12)
# Few catalogues for many servers, so that most servers have replicas.
CATALOGUES = (
    frozenset({"read", "send", "convert"}),
    frozenset({"read", "send", "search", "mail", "file", "time"}),
    frozenset({"time", "convert", *(f"tool_{number}" for number in range(12))}),
    frozenset[str](),
)
REPLICAS = tuple(f"web{number}" for number in range(8))
catalogues = st.sampled_from(CATALOGUES)
replicated_fleets = st.dictionaries(st.sampled_from(REPLICAS), catalogues, min_size=1)
entries_of_toolsets = st.lists(
    st.sampled_from([*SERVERS, *(f"{server}:{word}" for server in SERVERS for word in WORDS)])
)


def index_of(fleet: Fleet) -> FakeIndex:
    index = FakeIndex()
    for (server, name), tokens in fleet.items():
        on_wire: int | dict[Encoding, int] = WIRE * tokens if tokens else {}
        put(index, make_tool(server, name, f"{name} something", on_wire, model_tokens=tokens or {}))
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
        model_tokens={"cl100k_base": sum(tool.model_counts.get("cl100k_base", 0) for tool in tools)},
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
        (server["serverName"], name)
        for page in pages
        for server in page["toolsByServer"]
        for name in (shlex.split(server["names"]) if "names" in server else [tool["name"] for tool in server["tools"]])
    ]


def total(fleet: Fleet) -> int:
    return sum(tokens or 0 for tokens in fleet.values())


def meta(tokens: int, possible: int) -> dict[str, Any]:
    context, everything = ({"tokens": counted} for counted in (tokens, possible))
    return {"context": context, "totalPossibleContext": everything}


def check_shares(contexts: Collection[dict[str, Any]]) -> None:
    """Hold the contexts of the parts of a whole to their shares of it, which sum to 1 within rounding."""
    whole = sum(context["tokens"] or 0 for context in contexts)
    for context in contexts:
        tokens: int | None = context["tokens"]
        assert context.keys() == {"tokens", "percentTotal"}
        assert context["percentTotal"] == (None if tokens is None or not whole else round(tokens / whole, 4))
    if whole:
        assert abs(sum(context["percentTotal"] or 0 for context in contexts) - 1) <= ROUNDED * len(contexts)


def check_tool(tool: dict[str, Any], fleet: Fleet) -> None:
    assert tool.keys() == TOOL_FIELDS
    assert tool["namespacedName"] == f"{tool['serverName']}:{tool['name']}"
    assert tool["context"]["tokens"] == fleet[tool["serverName"], tool["name"]]


@settings(max_examples=examples(60))
@given(
    fleet=fleets,
    servers=st.none() | st.lists(st.sampled_from(SERVERS), min_size=1),
    max_tokens=st.integers(250, 1_000),
    detail=st.sampled_from(("name", "summary", "detailed", "full")),
)
def test_shares_of_the_listed_scope_sum_to_one_and_totals_equal_the_sums(
    fleet: Fleet, servers: list[str] | None, max_tokens: int, detail: str
) -> None:
    pages = all_pages(catalogue_of(index_of(fleet)), max_tokens=max_tokens, detail=detail, servers=servers)

    asked = {tool: tokens for tool, tokens in fleet.items() if servers is None or tool[0] in servers}
    groups = [server for page in pages for server in page["toolsByServer"]]
    contexts = {server["serverName"]: server["context"] for server in groups}
    tools = [tool for server in groups for tool in server.get("tools", ())]
    assert sorted(listed(pages)) == sorted(asked)
    assert all(page["meta"] == meta(total(asked), total(fleet)) for page in pages)
    assert {server: context["tokens"] for server, context in contexts.items()} == {
        server: total({tool: tokens for tool, tokens in asked.items() if tool[0] == server}) for server, _ in asked
    }
    check_shares(contexts.values())
    for tool in tools:
        assert ("definition" in tool) == (detail in ("detailed", "full"))
        check_tool({field: value for field, value in tool.items() if field != "definition"}, asked)
    if len(tools) == len(asked):
        check_shares([tool["context"] for tool in tools])


@settings(max_examples=examples(60))
@given(fleet=st.dictionaries(st.tuples(st.sampled_from(SERVERS), printable), st.none(), max_size=20))
def test_the_names_of_all_pages_are_those_of_every_visible_tool_exactly_once(fleet: Fleet) -> None:
    pages = all_pages(catalogue_of(index_of(fleet)), max_tokens=300, detail="name")

    assert all(
        server.keys() == {"serverName", "context", "names"} for page in pages for server in page["toolsByServer"]
    )
    assert sorted(listed(pages)) == sorted(fleet)


@settings(max_examples=examples(60))
@given(fleet=fleets, entries=entries_of_toolsets, budget=st.none() | st.integers(1, 1_000))
def test_shares_of_a_toolset_sum_to_one_and_its_total_equals_the_sum(
    fleet: Fleet, entries: list[str], budget: int | None
) -> None:
    index = index_of(fleet)
    index.put_toolset(Toolset(name="t", tools=tuple(entries), budget_tokens=budget))

    catalogue = catalogue_of(index)

    report = toolset_report(ToolsetRequest(name="t"), Caller("ann"), catalogue, Offers(catalogue), Recent())

    inside = {tool: tokens for tool, tokens in fleet.items() if tool[0] in entries or ":".join(tool) in entries}
    assert report["meta"] == meta(total(inside), total(fleet))
    assert [(tool["serverName"], tool["name"]) for tool in report["tools"]] == sorted(inside)
    for tool in report["tools"]:
        check_tool(tool, inside)
    check_shares([tool["context"] for tool in report["tools"]])
    if budget and None not in inside.values():
        assert report["budget"]["used"] == total(inside)


@settings(max_examples=examples(60))
@given(fleet=fleets, changes=st.lists(st.tuples(st.booleans(), st.sampled_from(SERVERS), names), max_size=20))
def test_while_tools_come_and_go_none_is_listed_twice_and_none_that_stays_is_left_out(
    fleet: Fleet, changes: list[tuple[bool, str, str]]
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


@settings(max_examples=examples(60))
@given(
    fleet=fleets,
    entries=entries_of_toolsets,
    asked=names,
)
def test_nothing_outside_a_toolset_is_found_listed_described_or_counted(
    fleet: Fleet, entries: list[str], asked: str
) -> None:
    catalogue = catalogue_of(index_of(fleet))
    caller = with_toolset(Caller("ann"), Toolset(name="t", tools=tuple(entries)))
    inside = {tool: tokens for tool, tokens in fleet.items() if tool[0] in entries or ":".join(tool) in entries}

    pages = all_pages(catalogue, allowed=caller.scope)
    found, _ = find_tool(FindRequest(tool_description=asked, limit=50), caller.scope, catalogue, caller)
    described = describe_tools(DescribeRequest(names=[":".join(tool) for tool in fleet]), caller.scope, catalogue)

    assert set(listed(pages)) == set(inside)
    assert pages[0]["meta"] == meta(total(inside), total(inside))
    assert {tool.first_server for tool in found.tools} <= set(inside)
    assert found.token_metrics.baseline_tokens == WIRE * total(inside)
    assert {tool.first_server for tool in described.tools} == set(inside)
    assert {name for problem in described.not_found or () for name in problem.candidates or ()} <= {
        ":".join(tool) for tool in inside
    }


def replicated(fleet: dict[str, frozenset[str]]) -> FakeIndex:
    index = FakeIndex()
    for server, names_of_server in fleet.items():
        replace_server(index, server, names_of_server, revision=1)
    return index


def replace_server(index: FakeIndex, server: str, tools: frozenset[str], revision: int) -> None:
    index.delete(server, [stored.definition.name for stored in index.tools(of(server), limit=1_000).tools])
    put_server(index, server, [make_tool("", name, tokens=10 + len(name)) for name in sorted(tools)], revision=revision)


def stop_server(index: FakeIndex, server: str, revision: int) -> None:
    index.set_status_and_groups(server, status="stopped", groups=frozenset())
    put_server(index, server, [], status="stopped", revision=revision)


def of(server: str) -> Scope:
    return Scope(servers=frozenset({server}))


@settings(max_examples=examples(60))
@given(
    fleet=replicated_fleets,
    servers=st.none() | st.lists(st.sampled_from(REPLICAS), min_size=1),
    max_tokens=st.integers(300, 1_000),
    detail=st.sampled_from(("name", "summary", "full")),
)
def test_each_replica_set_is_one_entry_with_the_tools_of_one_server_and_the_cost_of_all(
    fleet: dict[str, frozenset[str]], servers: list[str] | None, max_tokens: int, detail: str
) -> None:
    catalogue = catalogue_of(replicated(fleet))

    pages = all_pages(catalogue, max_tokens=max_tokens, detail=detail, servers=servers)

    asked = {server: tools for server, tools in fleet.items() if tools and (servers is None or server in servers)}
    sets = {min(members): members for tools in asked.values() if (members := [s for s in asked if asked[s] == tools])}
    assert sorted(listed(pages)) == sorted((first, name) for first in sets for name in fleet[first])
    entries = {entry["serverName"]: entry for page in pages for entry in page["toolsByServer"]}
    for first, members in sets.items():
        shown = {"count": len(members), "servers": sorted(members)[:3]} if len(members) > 1 else None
        assert entries[first].get("servedBy") == shown
        assert entries[first]["context"]["tokens"] == len(members) * sum(10 + len(name) for name in fleet[first])
    assert pages[0]["meta"]["context"]["tokens"] == sum(entry["context"]["tokens"] for entry in entries.values())
    check_shares([entry["context"] for entry in entries.values()])
    tools = [tool for page in pages for entry in page["toolsByServer"] for tool in entry.get("tools", ())]
    if len(tools) == len(listed(pages)):
        check_shares([tool["context"] for tool in tools])


@settings(max_examples=examples(60))
@given(
    fleet=replicated_fleets,
    changes=st.lists(st.dictionaries(st.sampled_from(REPLICAS), st.none() | catalogues), max_size=3),
)
@example(fleet={"web0": CATALOGUES[0], "web1": CATALOGUES[2]}, changes=[{"web0": CATALOGUES[2]}])
def test_while_servers_join_change_and_leave_sets_no_tool_that_stays_is_left_out(
    fleet: dict[str, frozenset[str]], changes: list[dict[str, frozenset[str] | None]]
) -> None:
    index, left, staying = replicated(fleet), iter(enumerate(changes, 2)), dict(fleet)

    def change() -> None:
        for revision, changed in islice(left, 1):
            for server, tools in changed.items():
                staying[server] = staying.get(server, frozenset()) & (tools or frozenset())
                if tools is None:
                    stop_server(index, server, revision)
                else:
                    replace_server(index, server, tools, revision)

    pages = all_pages(catalogue_of(index), change, max_tokens=200)

    seen = listed(pages)
    assert len(seen) == len(set(seen))
    assert {name for tools in staying.values() for name in tools} <= {name for _, name in seen}
