"""The names of a toolset's tools: a name never comes to belong to another tool, in whatever order servers change."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from query.caller import Caller
from query.catalogue import Catalogue
from query.records import Ledger
from query.replicas import split_name
from query.tools.registry import builtin_tools
from query.tools.toolset_tools import Toolsets, toolsets_of
from query.toolsets.offers import direct_name, with_toolset_scope
from shared.catalog import Endpoint
from shared.toolset import Toolset
from tests.support.calling import upstreams_to
from tests.support.fakes import FakeEmbedder, FakeIndex, ingested, make_tool
from tests.support.filled import record_of
from tests.support.profiles import examples

Tool = tuple[str, str]

# names that other servers' names begin, end or repeat
SERVERS = ("mail", "mail_send", "mail__send", "m", "mail_", "mail.send")
TOOLS = ("send_mail", "mail", "send__mail", "_send", "find_tool", "mail__send_mail", "send.mail", "ü", "x" * 90)
ANN = Caller("ann", toolset="all")

server_ids = st.from_regex(r"[a-z][a-c._/@-]{0,70}", fullmatch=True)
names = st.tuples(st.sampled_from(SERVERS) | server_ids, st.sampled_from(TOOLS) | st.text(min_size=1, max_size=70))
changes = st.lists(st.tuples(st.sampled_from(SERVERS), st.sets(st.sampled_from(TOOLS))), max_size=12)


@given(names, names)
@example(("mail", "send__mail"), ("mail__send", "mail"))
@example(("mail_", "_send"), ("mail", "__send"))
@example(("mail", "send.mail"), ("mail.send", "mail"))
def test_two_tools_never_share_a_name(first: Tool, second: Tool) -> None:
    assert (direct_name(*first) == direct_name(*second)) == (first == second)


@given(names)
def test_every_client_accepts_a_name_and_no_built_in_tool_has_it(tool: Tool) -> None:
    name = direct_name(*tool)

    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name)
    assert "__" in name or re.search(r"_[0-9a-f]{16}$", name)


def test_a_name_shows_its_server_and_tool() -> None:
    assert direct_name("mail", "send_mail") == "mail__send_mail"
    assert re.fullmatch(r"mail_send_mail_[0-9a-f]{16}", direct_name("mail", "send.mail"))


@settings(max_examples=examples(60))
@given(changes)
def test_servers_that_come_go_and_clash_move_no_name(listings: Sequence[tuple[str, set[str]]]) -> None:
    index, owners = FakeIndex(), dict[str, Tool]()
    index.put_toolset(Toolset(name="all", tools=("mail", "mail_send", "mail__send", "m", "mail_", "mail.send")))
    catalogue = Catalogue(index, FakeEmbedder(), Ledger(index))
    upstreams = upstreams_to({})
    ours = builtin_tools(catalogue, upstreams)
    toolsets = toolsets_of(catalogue, ours)
    for revision, (server, tools) in enumerate(listings, 1):
        _list(index, server, tools)
        index.put_server(record_of(server, revision=revision))
        for name, owner in _listed(toolsets, index).items():
            assert owners.setdefault(name, owner) == owner
        assert _listed(toolsets, index) == _listed(toolsets_of(catalogue, ours), index)


def test_the_name_on_each_replica_is_called_while_one_of_them_is_listed() -> None:
    index = FakeIndex()
    index.put_toolset(Toolset(name="all", tools=("a", "b")))
    for revision, server in enumerate("ab", 1):
        _list(index, server, {"send"})
        endpoint = Endpoint(url=f"http://{server}/mcp")
        record = record_of(server, endpoint=endpoint, declared_name="mail", catalog_digest="send", revision=revision)
        index.put_server(record)
    catalogue = Catalogue(index, FakeEmbedder(), Ledger(index))
    upstreams = upstreams_to({})
    direct = toolsets_of(catalogue, builtin_tools(catalogue, upstreams)).direct(with_toolset_scope(ANN, index))

    assert [handler.tool.name for handler in direct.handlers] == ["a__send"]
    assert {name for name in ("a__send", "b__send") if direct.handler_named(name)} == {"a__send", "b__send"}


def _list(index: FakeIndex, server: str, tools: set[str]) -> None:
    index.delete(server, set(TOOLS) - tools)
    index.upsert([ingested(make_tool(server, tool), FakeEmbedder()) for tool in tools])


def _listed(toolsets: Toolsets, index: FakeIndex) -> dict[str, Tool]:
    direct = toolsets.direct(with_toolset_scope(ANN, index))
    return {handler.tool.name: split_name(handler.sort_key) for handler in direct.handlers}
