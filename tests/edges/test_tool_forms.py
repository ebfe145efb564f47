"""A tool's name in any form leads to the server that it names, or to nothing: never to a stranger's look-alike."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from query.caller import ANYONE
from query.calling.tool_lookup import ResolvedName, resolve_tool_name, resolve_tool_names
from query.catalogue import Catalogue
from query.find import find_tool
from query.policy import Rule
from query.records import Ledger
from query.search.request import FindRequest
from query.tools.describe_tool import DescribeRequest, describe_tools
from query.tools.list_available_tools import tools_of
from query.toolsets.offers import direct_name, with_toolset
from shared.catalog import OPERATOR_SOURCE, PRODUCER_PREFIX, REPLICA_SET, IndexedTool, Scope, digest, point_id
from shared.errors import ToolscaleError
from shared.toolset import Toolset
from tests.support.builders import definition
from tests.support.fakes import FakeEmbedder, FakeIndex
from tests.support.replicated import put_server, tool

JOINTS = (":", "__", ".", "/", "::", "_", "-", " ", "@", "\uff1a")
OWN = {
    "payments": "charge_card",
    "pay": "ments.charge",
    "pay/ments": "refund",
    "time": "get-sum",
    "git_": "_log",
    "a.b": "c__d",
}
"""Tools of the owner; each other's ids and names begin, end or repeat them."""
STRANGERS = ("evil", "payments-2", "payments__charge", "pay.ments", "0")

servers = st.dictionaries(st.sampled_from(sorted(OWN)), st.just(None), min_size=1).map(list)


def forms(server_id: str, name: str) -> list[str]:
    """Return the spellings of an owner's tool, and strings that begin or end with one."""
    spelt = [f"{server_id}{joint}{name}" for joint in JOINTS]
    digests = [f"{name}@{digest(tool(name).definition, declared)[:8]}" for declared in (server_id, "web", "")]
    prefixed = [f"mcp__{server_id}__{name}", f"{server_id}:{server_id}:{name}", f"{name}:{server_id}"]
    return [*spelt, *digests, direct_name(server_id, name), *prefixed]


def is_ours(form: str, own: dict[str, str]) -> bool:
    """Return whether this is one of the product's own forms of an owner's tool."""
    return any(
        form in (f"{server_id}{joint}{name}", direct_name(server_id, name))
        for (server_id, name), joint in product(own.items(), (":", "__", ".", "/"))
    )


def catalogue_of(own: list[str], strangers: dict[str, list[str]], source: str, **stranger: Any) -> Catalogue:
    index = FakeIndex()
    for server_id in own:
        put_server(index, server_id, [tool(OWN[server_id])], server_id, source=source, revision=1)
    for server_id, names in strangers.items():
        # the declared name is a stranger's claim too
        put_server(index, server_id, [tool(name) for name in names], own[0], revision=2, **stranger)
    return Catalogue(index, FakeEmbedder(), Ledger(index), no_match_threshold=-1)


@given(
    servers,
    st.lists(st.sampled_from(STRANGERS), min_size=1, max_size=3, unique=True),
    st.sampled_from([OPERATOR_SOURCE, f"{PRODUCER_PREFIX}ci"]),
    st.sampled_from([{}, {"labels": {REPLICA_SET: "x"}}, {"status": "quarantined"}]),
)
@example(["payments", "time"], ["evil"], OPERATOR_SOURCE, {})
def test_no_form_of_an_owners_tool_reaches_a_stranger(
    own: list[str], strangers: list[str], source: str, stranger: dict[str, object]
) -> None:
    meant = {form: server_id for server_id in own for form in forms(server_id, OWN[server_id])}
    owned = {server_id: OWN[server_id] for server_id in own}
    names = [*meant, *owned.values()]
    catalogue = catalogue_of(own, {each: [name for name in names if len(name) < 64] for each in strangers}, source)

    resolved = resolve_tool_names([*dict.fromkeys(names)], Scope(), catalogue)

    for name, found in resolved.items():
        if isinstance(found, ResolvedName) and (is_ours(name, owned) or name in owned.values()):
            assert not set(found.server_ids) & set(strangers), name
    for server_id, name in owned.items():
        assert resolve_tool_name(f"{server_id}:{name}", Scope(), catalogue).server_ids == (server_id,)
        assert resolve_tool_name(name, Scope(), catalogue, server_id).server_ids == (server_id,)


@given(servers, st.lists(st.text("apymentschrg_.:/@-0", min_size=1, max_size=24), max_size=6, unique=True))
@example(["payments"], ["payments:charge_card", "evil:charge_card", "charge_card"])
def test_every_name_that_an_answer_shows_leads_back_to_its_tool(own: list[str], strange: list[str]) -> None:
    spelt = [form for server_id in own for form in forms(server_id, OWN[server_id])]
    catalogue = catalogue_of(own, {"evil": [*dict.fromkeys([*strange, *spelt])]}, OPERATOR_SOURCE)

    answer, _ = find_tool(FindRequest(tool_description="charge a card", limit=50), Scope(), catalogue)
    shown = [(each.name, *each.first_server) for each in answer.tools]

    for name, server_id, own_name in shown:
        resolved = resolve_tool_name(name, Scope(), catalogue)
        assert (resolved.tool.server_id, resolved.tool.definition.name) == (server_id, own_name)
        described = describe_tools(DescribeRequest(names=[name]), Scope(), catalogue)
        assert [each.name for each in described.tools] == [name]


@given(servers)
def test_a_selection_of_a_toolset_holds_the_named_servers_tool_alone(own: list[str]) -> None:
    entries = [f"{server_id}:{OWN[server_id]}" for server_id in own]
    strange = [form for server_id in own for form in forms(server_id, OWN[server_id])]
    catalogue = catalogue_of(own, {"evil": strange, "payments-2": strange}, OPERATOR_SOURCE)
    caller = with_toolset(ANYONE, Toolset(name="dev", tools=tuple(entries)))

    selected = {each.qualified_name for each in tools_of(caller.scope, catalogue)}

    assert selected == set(entries)


ids = st.from_regex(r"[a-z][a-z_./@-]{0,12}", fullmatch=True)
names = st.text("abc_.:/@-0 ", min_size=1, max_size=70)


@given(st.lists(st.tuples(ids, names), min_size=2, max_size=40, unique=True))
@example([("payments", "_charge"), ("payments_", "charge"), ("a", "b" * 70), ("a", "b" * 69)])
def test_no_two_tools_have_one_name_in_a_list(tools: list[tuple[str, str]]) -> None:
    assert len({direct_name(*each) for each in tools}) == len(tools)
    assert len({point_id(*each) for each in tools}) == len(tools)


@given(ids, ids, names, names)
def test_a_name_with_a_server_is_split_at_one_place_only(one: str, other: str, name: str, another: str) -> None:
    same = (one, name) == (other, another)

    assert (f"{one}:{name}" == f"{other}:{another}") == same


@pytest.mark.parametrize("name", ["charge_card", "get[1]", "a*b", "x?", "[!a]", "payments:charge_card"])
def test_a_rule_that_names_a_tool_covers_it_whatever_signs_it_has(name: str) -> None:
    rule = Rule(servers=("payments",), tools=(name,), action="deny")

    assert rule.covers("payments", definition(name))
    assert not rule.covers("evil", definition(name))


@pytest.mark.parametrize("given_server", ["payments", "evil", "evil:payments", "payments:", ""])
def test_a_call_with_a_server_reaches_no_other_one(given_server: str) -> None:
    strange = ["payments:charge_card", "charge_card", ":charge_card", "payments__charge_card"]
    catalogue = catalogue_of(["payments"], {"evil": strange}, OPERATOR_SOURCE)

    for name in ["charge_card", "payments:charge_card", "evil:charge_card", *strange]:
        try:
            found: IndexedTool = resolve_tool_name(name, Scope(), catalogue, given_server).tool
        except ToolscaleError:
            continue
        assert found.server_id == given_server.partition(":")[0]
