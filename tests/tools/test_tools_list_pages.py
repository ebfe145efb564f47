"""The pages of `tools/list`: no tool comes twice and none that stays is lost while its toolset's servers are listed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from query.answers.budget import ResponsePolicy
from query.caller import Caller
from query.catalogue import Catalogue
from query.mcp import page_of_tools
from query.records import Ledger
from query.replicas import split_name
from query.tools.registry import builtin_tools
from query.tools.toolset_tools import toolsets_of
from query.toolsets.offers import with_toolset_scope
from shared.toolset import Toolset
from tests.support.calling import upstreams_to
from tests.support.fakes import FakeEmbedder, FakeIndex, ingested, make_tool
from tests.support.profiles import examples

# the same names on several servers, so that what a tool is called changes while others come and go
WORDS = ("read", "send", "search", "convert", "file", "mail", "time")
SERVERS = ("a", "b", "s", "z")
SMALL = ResponsePolicy(max_tokens=200)
ANN = Caller("ann", toolset="all")

Tool = tuple[str, str]
Change = tuple[bool, Tool]

tools = st.tuples(st.sampled_from(SERVERS), st.sampled_from(WORDS))
fleets = st.lists(tools, min_size=1, max_size=20, unique=True)
changes = st.lists(st.tuples(st.booleans(), tools), max_size=12)


def put(index: FakeIndex, tool: Tool) -> None:
    # long enough that a page holds few
    described = make_tool(*tool, f"{tool[0]} can {tool[1]} something. " * 4, 40)
    index.upsert([ingested(described, FakeEmbedder())])


def apply(index: FakeIndex, change: Change) -> None:
    comes, (server, name) = change
    if comes:
        put(index, (server, name))
    else:
        index.delete(server, [name])


def pages(index: FakeIndex, between: Sequence[Change]) -> Iterator[list[Tool]]:
    """Yield the tools of each page, a change of the catalogue before every next one."""
    catalogue = Catalogue(index, FakeEmbedder(), Ledger(index), response_policy=SMALL)
    left, cursor = iter(between), None
    ours = builtin_tools(catalogue, upstreams_to({}))
    while True:
        # another replica returns each page: the changes come without records, so one keeps the tools of before
        direct = toolsets_of(catalogue, ours).direct(with_toolset_scope(ANN, index))
        page = page_of_tools([*ours, *direct.handlers], cursor, ANN, SMALL)
        owners = {handler.tool.name: split_name(handler.sort_key) for handler in direct.handlers}
        yield [owners[tool.name] for tool in page.tools if tool.name in owners]
        if (cursor := page.next_cursor) is None:
            return
        for change in left:
            apply(index, change)
            break


@settings(max_examples=examples(60))
@given(fleets, changes)
def test_while_tools_come_and_go_none_is_listed_twice_and_none_that_stays_is_left_out(
    fleet: list[Tool], between: list[Change]
) -> None:
    index = FakeIndex()
    for tool in fleet:
        put(index, tool)
    index.put_toolset(Toolset(name="all", tools=SERVERS))

    listed = [tool for page in pages(index, between) for tool in page]

    gone = {tool for comes, tool in between if not comes}
    assert len(listed) == len(set(listed))
    assert set(fleet) - gone <= set(listed)
