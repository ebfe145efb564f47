"""The pages of a search: within the budget, each tool once, and none lost while servers come and go."""

from __future__ import annotations

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from query.answers.answer import FindResponse
from query.answers.budget import MIN_TOKENS, ResponsePolicy, counting
from query.catalogue import Catalogue
from query.find import find_tool
from query.records import Ledger
from query.search.request import FindRequest
from shared.catalog import Encoding, IndexedTool, Scope
from shared.settings import ResponseMode
from shared.text.tokens import json_text
from tests.support.fakes import FakeEmbedder, FakeIndex, ingested, make_tool

WORDS = ["read", "write", "file", "mail", "send", "issue", "list", "zap"]
ENCODING: Encoding = "cl100k_base"
COUNT = counting(ENCODING)
EMBEDDER = FakeEmbedder()
ANSWERS = ResponsePolicy()

names = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map("_".join)


def tool_of(server: str, name: str, words: list[str], times: int) -> IndexedTool:
    return make_tool(server, name, ". ".join(words) * times, tokens=40 * times)


tools = st.builds(
    tool_of,
    st.sampled_from(["files", "mail-server", "github/enterprise"]),
    names,
    st.lists(st.sampled_from(WORDS), max_size=6),
    st.sampled_from([1, 1, 1, 40]),
)
fleets = st.lists(tools, max_size=25, unique_by=lambda tool: tool.qualified_name)
MODES: tuple[ResponseMode, ...] = get_args(ResponseMode)
modes = st.sampled_from(MODES)


def ask(index: FakeIndex, *, mode: ResponseMode, limit: int, max_tokens: int, cursor: str | None) -> FindResponse:
    request = FindRequest(
        tool_description="read a file", limit=limit, detail=mode, max_tokens=max_tokens, cursor=cursor
    )
    catalogue = Catalogue(index, EMBEDDER, Ledger(index), ENCODING, no_match_threshold=-1, response_policy=ANSWERS)
    answer, _ = find_tool(request, Scope(), catalogue)
    assert COUNT(json_text(answer.as_object())) <= max_tokens
    return answer


def shown(answer: FindResponse) -> list[str]:
    return [tool.name for tool in answer.tools]


def filled(fleet: list[IndexedTool]) -> FakeIndex:
    index = FakeIndex()
    index.upsert([ingested(tool, EMBEDDER) for tool in fleet])
    return index


@given(fleets, modes, st.integers(1, 10), st.integers(MIN_TOKENS, 1_500))
def test_every_page_is_within_the_budget_and_together_they_hold_each_tool_once_in_the_same_order(
    fleet: list[IndexedTool], mode: ResponseMode, limit: int, max_tokens: int
) -> None:
    index = filled(fleet)
    in_one = shown(ask(index, mode="detailed", limit=50, max_tokens=5_000, cursor=None))

    read: list[str] = []
    cursor = None
    while True:
        answer = ask(index, mode=mode, limit=limit, max_tokens=max_tokens, cursor=cursor)
        read += shown(answer)
        assert len(read) <= 50, "pages that repeat tools would never end"
        if (cursor := answer.next_cursor) is None:
            break
        assert answer.tools, "a page without tools would never end"

    assert len(read) == len(set(read)) == len(fleet)
    assert read[: len(in_one)] == in_one


@given(fleets, st.lists(st.tuples(st.sampled_from(["add", "drop"]), tools), max_size=12), st.integers(1, 4), modes)
def test_while_tools_come_and_go_no_definition_comes_twice_and_none_that_stays_is_lost(
    fleet: list[IndexedTool], changes: list[tuple[str, IndexedTool]], limit: int, mode: ResponseMode
) -> None:
    index = filled(fleet)
    throughout = {tool.qualified_name for tool in index.tools(Scope(), limit=100).tools}
    read: list[str] = []
    touched: set[str] = set()
    cursor, pending = None, list(changes)

    while True:
        answer = ask(index, mode=mode, limit=limit, max_tokens=600, cursor=cursor)
        read += shown(answer)
        assert len(read) <= 50, "pages that repeat tools would never end"
        if (cursor := answer.next_cursor) is None:
            break
        if pending:
            kind, tool = pending.pop()
            change(index, kind, tool)
            touched.add(tool.qualified_name)
            if kind == "drop":
                throughout.discard(tool.qualified_name)

    untouched = [name for name in read if name not in touched]
    assert len(untouched) == len(set(untouched))
    assert throughout <= set(read)


def change(index: FakeIndex, kind: str, tool: IndexedTool) -> None:
    """Write or remove a tool."""
    if kind == "add":
        index.upsert([ingested(tool, EMBEDDER)])
    else:
        index.delete(tool.server_id, [tool.definition.name])
