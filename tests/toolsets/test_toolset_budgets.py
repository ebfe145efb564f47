"""An enforced budget keeps the tools that its caller calls most, in `tools/list` and in every answer about it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mcp import Client

from query.caller import Caller
from query.catalogue import Catalogue, recorded
from query.mcp import service_of
from query.records import Ledger
from query.tools.revisions import WARNINGS_KEY
from query.toolsets import offers
from query.toolsets.offers import apply_budget, by_use, cost
from query.usage import recent_calls
from query.usage.recent_calls import RecentCalls
from query.usage.record import call_rows
from query.usage.store_redis import RedisUsage
from query.usage.store_sqlite import SqliteUsage
from query.usage.usage import Usage, summed, today
from shared.catalog import Encoding, IndexedTool, point_id
from shared.service.redis import connect
from shared.toolset import Toolset
from tests.support.calling import text_of, upstreams_to
from tests.support.fakes import FakeEmbedder, FakeIndex, make_tool
from tests.support.filled import index_of
from tests.support.profiles import examples

pytestmark = pytest.mark.anyio

ANN, BOB = Caller("ann", toolset="mail"), Caller("bob", toolset="mail")
# The tools of `mail`; the alphabet, the cost and the calls of ann order them differently.
COSTS = {"archive": 30, "browse": 20, "send": 20, "zap": 10}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the first read on a busy machine too."""
    monkeypatch.setattr(recent_calls, "FIRST_READ_S", 30.0)


@pytest.fixture
def history(tmp_path: Path) -> Generator[Usage]:
    with closing(SqliteUsage(tmp_path / "savings.sqlite3", 30)) as opened:
        yield opened


def index_with(budget_tokens: int | None, costs: Mapping[str, int]) -> FakeIndex:
    """Return the server `mail`, and the toolset of all its tools with this enforced budget."""
    tools = [make_tool("mail", name, f"{name} a mail", 100, model_tokens=tokens) for name, tokens in costs.items()]
    index = index_of(*tools)
    enforce = budget_tokens is not None
    index.put_toolset(Toolset(name="mail", tools=("mail",), budget_tokens=budget_tokens, enforce=enforce))
    return index


@asynccontextmanager
async def clients_of(
    history: Usage,
    budget_tokens: int | None,
    *callers: Caller,
    calls: RecentCalls | None = None,
    costs: Mapping[str, int] = COSTS,
) -> AsyncGenerator[list[Client]]:
    """Yield a client of each caller, all of the same new process; what they do is recorded when the block ends."""
    index = index_with(budget_tokens, costs)
    made = Catalogue(index, FakeEmbedder(), Ledger(index), no_match_threshold=-1)
    upstreams = upstreams_to({})
    with recorded(made, history) as catalogue:
        if calls:
            catalogue = replace(catalogue, recent_calls=calls.of)
        services = [service_of(catalogue, upstreams, partial(known_as, caller)) for caller in callers]
        async with AsyncExitStack() as opened:
            yield [await opened.enter_async_context(Client(service)) for service in services]


def known_as(caller: Caller, _: object) -> Caller:
    return caller


def use(history: Usage, caller: str, **times: int) -> None:
    """Record so many calls of these tools."""
    for tool, count in times.items():
        history.add(summed(row for _ in range(count) for row in call_rows(today(), caller, "mail", tool, 10, 7)))


async def offered(client: Client) -> tuple[list[str], list[str]]:
    """Return the tools of `mail` in `tools/list`, and its warnings."""
    page = await client.list_tools()
    tools, warnings = page.tools, list((page.meta or {}).get(WARNINGS_KEY, ()))
    while page.next_cursor:
        page = await client.list_tools(cursor=page.next_cursor)
        tools = [*tools, *page.tools]
    return [tool.name.removeprefix("mail__") for tool in tools if tool.name.startswith("mail__")], warnings


async def answer(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return dict(result.structured_content)


async def test_the_most_called_tools_are_kept_then_the_cheapest(history: Usage) -> None:
    use(history, "ann", send=3, archive=1)

    async with clients_of(history, 60, ANN) as (client,):
        kept, warnings = await offered(client)
        shown = await answer(client, "get_active_toolset")

    assert kept == ["archive", "send", "zap"]
    assert warnings == ["Left out for the budget of 60 tokens: mail:browse (20); together 20 tokens."]
    assert shown["leftOut"] == [{"name": "mail:browse", "tokens": 20}]
    assert (shown["budget"]["used"], shown["warnings"]) == (60, warnings)
    assert [tool["name"] for tool in shown["tools"]] == sorted(COSTS)


async def test_calls_of_other_callers_do_not_count(history: Usage) -> None:
    use(history, "bob", archive=9)

    async with clients_of(history, 30, ANN, BOB) as (ann, bob):
        tools = [await offered(client) for client in (ann, bob)]
        costs = [(await answer(client, "find_tool", tool_description="mail"))["token_metrics"] for client in (ann, bob)]

    assert [kept for kept, _ in tools] == [["browse", "zap"], ["archive"]]
    assert [cost["net_tokens_saved"] + cost["answer_tokens"] for cost in costs] == [50, 50]
    assert [cost["baseline_tokens"] for cost in costs] == [200, 300]


async def test_a_call_of_a_left_out_tool_brings_it_into_later_lists(history: Usage) -> None:
    async with clients_of(history, 30, ANN) as (client,):
        first, _ = await offered(client)
        # the name of an earlier list; the server is down, and the call counts
        called = await client.call_tool("mail__archive", {})
        still, _ = await offered(client)
    async with clients_of(history, 30, ANN) as (client,):
        later, warnings = await offered(client)

    assert text_of(called).startswith("mail: ")
    assert first == still == ["browse", "zap"]
    assert later == ["archive"]
    assert warnings == [
        "Left out for the budget of 30 tokens: mail:zap (10), mail:browse (20), mail:send (20); together 50 tokens."
    ]


async def test_of_a_toolset_that_is_too_large_the_most_called_tools_are_offered(
    history: Usage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offers, "MAX_DIRECT", 20)
    names = [f"tool_{number:02}" for number in range(25)]
    by_point = sorted(names, key=lambda name: point_id("mail", name))
    called = by_point[-4:]  # the last ones in the order of the index
    use(history, "ann", **dict.fromkeys(called, 1))

    async with clients_of(history, None, ANN, costs=dict.fromkeys(names, 10)) as (client,):
        pages = [await offered(client) for _ in range(2)]
        shown = await answer(client, "get_active_toolset")

    (kept, warnings), again = pages
    assert again == (kept, warnings)
    assert len(kept) == 20
    assert set(called) <= set(kept)
    assert set(kept) - set(called) <= set(by_point[:20])
    assert warnings == ["Only 20 tools are offered directly, the most called first; find_tool finds the others."]
    assert shown["warnings"] == warnings
    assert len(shown["tools"]) == len(names)


async def test_a_search_keeps_its_best_matches(history: Usage) -> None:
    use(history, "ann", browse=9, send=9)

    async with clients_of(history, 30, ANN) as (client,):
        found = await answer(client, "find_tool", tool_description="archive a mail", tool_keywords="archive")

    assert [tool["name"] for tool in found["tools"]] == ["mail:archive"]


async def test_a_history_that_is_down_leaves_the_cheapest_tools() -> None:
    with closing(RedisUsage(connect("redis://127.0.0.1:9/0"), keep_days=2)) as down:
        async with clients_of(down, 30, ANN) as (client,):
            found = [await offered(client), await offered(client)]
            shown = await answer(client, "get_active_toolset")

    assert [kept for kept, _ in found] == [["browse", "zap"]] * 2
    assert [tool["name"] for tool in shown["leftOut"]] == ["mail:send", "mail:archive"]


# --- any costs and calls ---

ENCODING: Encoding = "cl100k_base"
NAMES = [f"{server}:{name}" for server in "ab" for name in ("read", "send", "find", "move")]

# None: the tool could not be counted
costs = st.dictionaries(st.sampled_from(NAMES), st.none() | st.integers(0, 60), min_size=3)
# also of tools that are not in the toolset, or no longer
counts = st.dictionaries(st.sampled_from([*NAMES, "gone:tool"]), st.integers(1, 4)).map(
    lambda calls: frozenset(calls.items())
)


def tool_of(name: str, tokens: int | None) -> IndexedTool:
    server, _, tool = name.partition(":")
    return make_tool(server, tool, model_tokens={} if tokens is None else tokens)


@settings(max_examples=examples(200))
@given(tokens=costs, calls=counts, limit=st.none() | st.integers(0, 200), chance=st.randoms())
@example({"a:read": 1, "a:send": 9, "b:find": None}, frozenset({("a:send", 1)}), 9, Random(0))
def test_a_budget_keeps_the_most_used_tools_that_fit(
    tokens: dict[str, int | None], calls: frozenset[tuple[str, int]], limit: int | None, chance: Random
) -> None:
    tools = [tool_of(*item) for item in tokens.items()]
    shuffled = chance.sample(tools, len(tools))
    caller = Caller("ann", limit_tokens=limit, budget_tokens=limit)

    result = apply_budget(by_use(shuffled, calls, ENCODING), caller, ENCODING)

    # nothing is lost, and the order in which the index lists the tools does not matter
    assert sorted(tool.qualified_name for tool in (*result.kept, *result.excluded)) == sorted(tokens)
    assert result == apply_budget(by_use(tools, calls, ENCODING), caller, ENCODING)
    if limit is None:
        assert not result.excluded
        return
    assert result.tokens <= limit
    uses = dict(calls)

    def rank(tool: IndexedTool) -> tuple[int, int, str]:
        return -uses.get(tool.qualified_name, 0), cost(tool, ENCODING), tool.qualified_name

    for dropped in result.excluded:
        preferred = sum(cost(tool, ENCODING) for tool in result.kept if rank(tool) < rank(dropped))
        assert preferred + cost(dropped, ENCODING) > limit
