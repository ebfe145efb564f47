"""No saving is claimed for the tools of a toolset that its caller has in `tools/list`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp import Client

from query.caller import Caller
from query.catalogue import Catalogue
from query.mcp import service_of
from query.records import Ledger
from query.toolsets import offers
from query.toolsets.offers import with_toolset
from shared.catalog import (
    ENCODINGS,
    Encoding,
    IndexedTool,
)
from shared.toolset import Toolset
from tests.support.calling import upstreams_to
from tests.support.fakes import FakeEmbedder, ingested, make_tool
from tests.support.filled import CountedIndex, record_of
from tests.support.profiles import examples

SERVERS = ("a", "b", "c")
WORDS = ("read", "send", "search", "convert", "file")
EMBEDDER = FakeEmbedder()

Key = tuple[str, str]
Tokens = tuple[int, int]

fleets = st.dictionaries(
    st.tuples(st.sampled_from(SERVERS), st.sampled_from(WORDS)),
    st.tuples(st.integers(0, 300), st.integers(0, 200)),
    min_size=1,
    max_size=12,
)
entries = st.lists(st.sampled_from([*SERVERS, *(f"{server}:{word}" for server in SERVERS for word in WORDS)]))


@dataclass(frozen=True)
class Site:
    """A catalogue and the service over it."""

    index: CountedIndex
    catalogue: Catalogue

    def write(self, fleet: Mapping[Key, Tokens], servers: Iterable[str] = SERVERS) -> None:
        """Make these the tools of the servers, as a reconcile does."""
        for server in servers:
            tools = [tool_of(key, tokens) for key, tokens in fleet.items() if key[0] == server]
            self.index.delete(server, self.index.tool_states(server))
            self.index.upsert([ingested(tool, EMBEDDER) for tool in tools])
            revision = 1 + max((record.revision for record in self.index.servers()), default=0)
            self.index.put_server(record_of(server, tools, revision=revision))

    def ask(self, caller: Caller, **arguments: Any) -> tuple[dict[str, Any], list[Key]]:
        """Return an answer of `find_tool`, and the tools of the toolset in `tools/list`."""

        async def ask() -> tuple[dict[str, Any], list[Key]]:
            upstreams = upstreams_to({})
            async with Client(service_of(self.catalogue, upstreams, lambda _: caller)) as client:
                result = await client.call_tool("find_tool", {"tool_description": "read a file", **arguments})
                assert not result.is_error, result.content
                listed = (await client.list_tools()).tools
            direct = [tool.description or "" for tool in listed if (tool.description or "").startswith("key ")]
            return dict(result.structured_content), [(key.split()[1], key.split()[2]) for key in direct]

        return anyio.run(ask)


def tool_of(key: Key, tokens: Tokens) -> IndexedTool:
    wire, model = tokens
    return make_tool(*key, f"key {key[0]} {key[1]}", wire, model_tokens=model)


def site_of(fleet: Mapping[Key, Tokens], *written: Toolset) -> Site:
    index = CountedIndex()
    site = Site(index, Catalogue(index, EMBEDDER, Ledger(index), no_match_threshold=-1))
    site.write(fleet)
    for toolset in written:
        index.put_toolset(toolset)
    return site


def check(answer: dict[str, Any], fleet: Mapping[Key, Tokens], inside: Iterable[Key], listed: Iterable[Key]) -> None:
    """Hold the metrics to a recount of the toolset's tools that are not in `tools/list`."""
    wire, model = (sum(fleet[key][at] for key in inside) - sum(fleet[key][at] for key in listed) for at in (0, 1))
    metrics = answer["token_metrics"]
    assert metrics["baseline_tokens"] == max(wire, metrics["returned_tokens"])
    assert metrics["tokens_saved"] == max(0, wire - metrics["returned_tokens"])
    assert metrics["net_tokens_saved"] == model - metrics["answer_tokens"]


@settings(max_examples=examples(60))
@given(
    fleet=fleets,
    selected=entries,
    direct=st.sampled_from([1, 3, 256]),
    budget=st.none() | st.integers(1, 600),
    encoding=st.sampled_from(ENCODINGS),
    detail=st.sampled_from(["detailed", "full", "summary"]),
)
def test_nothing_is_claimed_for_a_tool_that_is_offered_directly(
    fleet: dict[Key, Tokens], selected: list[str], direct: int, budget: int | None, encoding: Encoding, detail: str
) -> None:
    site = site_of(fleet, Toolset(name="t", tools=tuple(selected), budget_tokens=budget, enforce=budget is not None))
    inside = [key for key in fleet if key[0] in selected or ":".join(key) in selected]

    with patch.object(offers, "MAX_DIRECT", direct):
        answer, listed = site.ask(Caller("ann", toolset="t"), encoding=encoding, detail=detail)

    assert len(listed) <= direct
    check(answer, fleet, inside, listed)
    if len(listed) == len(inside):
        assert (answer["token_metrics"]["tokens_saved"], answer["token_metrics"]["savings_percentage"]) == (0, 0)


@settings(max_examples=examples(40))
@given(fleets=st.lists(fleets, min_size=2, max_size=4))
def test_the_cost_of_offered_tools_follows_the_toolset_s_servers(fleets: list[dict[Key, Tokens]]) -> None:
    toolset = Toolset(name="t", tools=("a", "b:read"))
    site = site_of({}, toolset)
    cost, caller = offers.Offers(site.catalogue).cost, with_toolset(Caller("ann"), toolset)

    for fleet in fleets:
        site.write(fleet)
        site.catalogue.ledger.baseline(caller.scope, "cl100k_base")
        inside = [tokens for key, tokens in fleet.items() if key[0] == "a" or key == ("b", "read")]
        found = cost(caller, "cl100k_base")
        assert (found.tokens, found.model_tokens) == (
            sum(wire for wire, _ in inside),
            sum(model for _, model in inside),
        )


def test_the_cost_of_offered_tools_is_read_once_for_all_callers_of_a_toolset() -> None:
    fleet = {("a", "read"): (100, 50), ("a", "send"): (10, 5)}
    site = site_of(fleet)
    cost = offers.Offers(site.catalogue).cost
    selection = Toolset(name="t", tools=("a",)).selection

    costs = [cost(Caller(name, toolset="t", selection=selection), "cl100k_base") for name in ("ann", "bob", "ann")]
    for caller in (Caller("ann"), Caller("ann", permissions=frozenset({"catalog:read"}), selection=selection)):
        assert cost(caller, "cl100k_base") == offers.NOTHING

    assert {(each.tokens, each.model_tokens, each.tools) for each in costs} == {(110, 55, 2)}
    assert site.index.reads["tools"] == 1


def test_a_caller_without_directly_offered_tools_gets_the_whole_baseline() -> None:
    fleet = {("a", "read"): (100, 50), ("a", "send"): (10, 5), ("b", "read"): (1_000, 500)}
    site = site_of(fleet, Toolset(name="t", tools=("a",)))
    reader = Caller("ann", permissions=frozenset({"catalog:read"}), toolset="t")

    answers = [site.ask(caller, limit=1)[0]["token_metrics"] for caller in (reader, Caller("bob"))]

    assert [metrics["baseline_tokens"] for metrics in answers] == [110, 1_110]
    assert [metrics["net_tokens_saved"] + metrics["answer_tokens"] for metrics in answers] == [55, 555]
