"""Advice from the calls of the last weeks, as callers see it over MCP and on the page."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from itertools import combinations, starmap
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mcp import Client

from query.caller import Caller
from query.catalogue import Catalogue
from query.mcp import service_of
from query.records import Ledger
from query.tools.get_active_toolset import GetActiveToolset, ToolsetRequest
from query.toolsets.advice import Advice, AdvisedTool, advice_for, best_within, by_calls, calls_of, tokens_of
from query.toolsets.offers import Offers, apply_budget, by_use
from query.usage.recent_calls import REFRESH_S
from query.usage.store_sqlite import SqliteUsage
from query.usage.usage import Counts, RowKey, Usage, today
from query.web.page import CONTENT_SECURITY_POLICY
from shared.catalog import IndexedTool, ToolDefinition
from shared.errors import HistoryUnavailable, ToolsetUnknown
from shared.toolset import Toolset
from tests.support import replicated
from tests.support.calling import upstreams_to
from tests.support.fakes import FakeEmbedder, FakeIndex, make_tool
from tests.support.filled import index_of
from tests.support.http_callers import app_of, entry, http_client, static
from tests.support.profiles import examples

pytestmark = pytest.mark.anyio

ROOT, ANN, BOB = Caller("root"), Caller("ann", frozenset({"dev"})), Caller("bob", frozenset({"dev"}))
DAY = today()
DEV = Toolset(name="dev", tools=("git", "time"))
# Model tokens; the alphabet, the cost and the calls order them differently.
COSTS = {"git:add": 300, "git:log": 100, "git:status": 100, "time:now": 50, "time:zones": 400, "ops:kill": 10}


@pytest.fixture
def history(tmp_path: Path) -> Generator[Usage]:
    with closing(SqliteUsage(tmp_path / "savings.sqlite3", 60)) as opened:
        yield opened


@pytest.fixture
def index() -> FakeIndex:
    made = index_of(*starmap(tool_costing, COSTS.items()))
    made.put_toolset(DEV)
    return made


def tool_costing(qualified_name: str, tokens: int) -> IndexedTool:
    server, name = qualified_name.split(":")
    return make_tool(server, name, model_tokens=tokens, groups=["ops" if server == "ops" else "dev"])


def record_calls(history: Usage, caller: str, calls: Mapping[str, int], days_ago: int = 0) -> None:
    _add(history, caller, {name: {"answers": 0, "calls": count, "bytes": 9} for name, count in calls.items()}, days_ago)


def record_shown(history: Usage, caller: str, shown: Mapping[str, int]) -> None:
    _add(history, caller, {name: {"answers": count} for name, count in shown.items()})


def _add(history: Usage, caller: str, counts: Mapping[str, Counts], days_ago: int = 0) -> None:
    day = DAY - timedelta(days=days_ago)
    history.add({RowKey(day, caller, *name.split(":")): each for name, each in counts.items()})


def held(index: FakeIndex) -> Catalogue:
    return Catalogue(index, FakeEmbedder(), Ledger(index))


def advise(index: FakeIndex, history: Usage, viewer: Caller = ROOT, **asked: Any) -> Advice:
    return advice_for(viewer, held(index), history, **asked)


def names(tools: list[Any]) -> list[str]:
    return [tool.name for tool in tools]


# --- the choice ---


def test_the_advice_is_from_the_calls_of_thirty_days_in_the_history(index: FakeIndex, history: Usage) -> None:
    record_calls(history, "ann", {"git:log": 6, "time:now": 2}, days_ago=29)
    record_calls(history, "bob", {"git:log": 3, "git:add": 1})
    record_calls(history, "bob", {"git:status": 50}, days_ago=30)
    record_shown(history, "bob", {"time:zones": 10, "git:log": 1})

    found = advise(index, history, toolset="dev", budget=200)

    assert [(each.name, each.tokens, each.calls, each.verdict) for each in found.tools] == [
        ("git:log", 100, 9, "keep"),
        ("time:now", 50, 2, "keep"),
        ("time:zones", 400, 0, "drop"),
        ("git:add", 300, 1, "drop"),
        ("git:status", 100, 0, "drop"),
    ]
    assert found.calls == 12
    assert found.sentences == [
        f"2 tools of 150 tokens had 11 of 12 calls from {DAY - timedelta(days=29)} to {DAY}.",
        "Without time:zones (0 calls), git:add (1 call), git:status (0 calls), each tools/list has 800 tokens less.",
    ]


def test_without_a_budget_a_toolset_keeps_every_tool_that_was_called(index: FakeIndex, history: Usage) -> None:
    record_calls(history, "ann", {"git:add": 1, "time:now": 1})

    found = advise(index, history, toolset="dev")

    assert (found.budget_tokens, found.calls) == (950, 2)
    assert names(found.chosen) == ["time:now", "git:add"]
    assert names(found.dropped) == ["time:zones", "git:log", "git:status"]


def test_without_a_toolset_every_visible_tool_may_be_chosen(index: FakeIndex, history: Usage) -> None:
    record_calls(history, "ann", {"ops:kill": 2, "time:zones": 1})

    found = advise(index, history)

    assert [(each.name, each.verdict) for each in found.tools] == [("ops:kill", "add"), ("time:zones", "add")]
    assert (found.toolset, found.budget_tokens) == (None, 4_000)


def test_a_tool_that_an_enforced_budget_leaves_out_is_added_for_another(index: FakeIndex, history: Usage) -> None:
    index.put_toolset(DEV.model_copy(update={"budget_tokens": 400, "enforce": True}))
    record_calls(history, "ann", {"time:zones": 9, "git:add": 8, "git:log": 7})

    found = advise(index, history, toolset="dev")

    assert [(each.name, each.verdict) for each in found.tools] == [
        ("git:add", "add"), ("git:log", "add"), ("time:zones", "drop")
    ]  # fmt: skip


def test_a_toolset_without_calls_is_advised_against_nothing(index: FakeIndex, history: Usage) -> None:
    record_shown(history, "ann", {"time:zones": 3})

    found = advise(index, history, toolset="dev", budget=60)

    assert found.tools == []
    assert found.sentences == [f"No calls of these tools from {found.first_day} to {DAY}, so none is advised against."]


def test_calls_of_tools_that_are_gone_count_for_nothing(index: FakeIndex, history: Usage) -> None:
    record_calls(history, "ann", {"git:gone": 9, "git:log": 1})

    assert advise(index, history).calls == 1


def test_calls_of_replicas_are_those_of_their_set(history: Usage) -> None:
    record_calls(history, "ann", {"web0:sum": 2})
    record_calls(history, "bob", {"web1:sum": 3})
    index = FakeIndex()
    for server in ("web0", "web1"):
        replicated.put_server(index, server, [replicated.tool("sum")])

    found = advise(index, history)

    assert [(each.name, each.calls) for each in found.tools] == [("web0:sum", 5)]


def test_a_tool_that_cannot_be_offered_is_not_advised(history: Usage) -> None:
    broken = ToolDefinition.from_wire('{"name": "t", "inputSchema": "none"}')
    record_calls(history, "ann", {"s:t": 1})

    assert advise(index_of(replace(make_tool("s", "t"), definition=broken)), history).tools == []


# --- rights ---


def test_a_caller_with_groups_sees_its_own_calls_of_its_own_tools(index: FakeIndex, history: Usage) -> None:
    record_calls(history, "ann", {"git:log": 1, "ops:kill": 5})
    record_calls(history, "bob", {"git:add": 7})

    found = advise(index, history, ANN)

    assert (names(found.tools), found.calls) == (["git:log"], 1)


def test_a_token_for_one_toolset_gets_no_advice_on_another(index: FakeIndex, history: Usage) -> None:
    index.put_toolset(Toolset(name="all", tools=("git", "time", "ops")))

    with pytest.raises(ToolsetUnknown, match="no toolset all"):
        advise(index, history, Caller("ann", toolset="dev"), toolset="all")
    with pytest.raises(ToolsetUnknown):
        advise(index, history, toolset="none")


# --- where it is shown ---


async def shown_to(index: FakeIndex, history: Usage, caller: Caller, **arguments: Any) -> dict[str, Any]:
    """Return the answer of `get_active_toolset`."""
    upstreams = upstreams_to({})
    catalogue = replace(held(index), usage=history)
    async with Client(service_of(catalogue, upstreams, lambda _: caller)) as client:
        result = await client.call_tool("get_active_toolset", arguments)
    shown: dict[str, Any] = result.structured_content or {}
    return shown


async def test_get_active_toolset_advises_its_caller_in_short_sentences(index: FakeIndex, history: Usage) -> None:
    record_calls(history, "ann", {"git:log": 9, "git:add": 1})
    record_calls(history, "bob", {"time:zones": 30})

    own = await shown_to(index, history, replace(ANN, toolset="dev"))
    every = await shown_to(index, history, ROOT, name="dev")

    assert "had 10 of 10 calls" in own["advice"][0]
    assert own["advice"][1].startswith("Without time:zones (0 calls), git:status (0 calls), time:now (0 calls), ")
    assert "had 40 of 40 calls" in every["advice"][0]


async def test_the_budget_of_the_toolset_limits_the_advice(index: FakeIndex, history: Usage) -> None:
    index.put_toolset(DEV.model_copy(update={"budget_tokens": 100}))
    record_calls(history, "ann", {"git:log": 9, "git:add": 1})

    shown = await shown_to(index, history, replace(ANN, toolset="dev"))

    assert shown["advice"][0].startswith("1 tool of 100 tokens had 9 of 10 calls")
    assert "1 more, each tools/list has 850 tokens less" in shown["advice"][1]


def test_the_advice_of_a_caller_is_kept_for_minutes(
    index: FakeIndex, history: Usage, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_calls(history, "ann", {"git:log": 9})
    record_calls(history, "bob", {"git:add": 7})
    reads, now_s = Mock(side_effect=history.sums), [0.0]
    monkeypatch.setattr(history, "sums", reads)
    catalogue = replace(held(index), usage=history)
    tool = GetActiveToolset(catalogue, Offers(catalogue), lambda: now_s[0])

    def advice_to(caller: Caller) -> tuple[str, int]:
        """Return the calls in the advice, and the reads of the store so far."""
        first = tool.respond(ToolsetRequest(name="dev"), caller)["advice"][0]
        return first.partition(" had ")[2].partition(" calls")[0], reads.call_count

    assert [advice_to(ANN), advice_to(ANN), advice_to(BOB)] == [("9 of 9", 1), ("9 of 9", 1), ("7 of 7", 2)]
    index.put_toolset(DEV.model_copy(update={"budget_tokens": 200}))
    assert advice_to(ANN) == ("9 of 9", 3)
    record_calls(history, "ann", {"git:log": 1})
    now_s[0] = REFRESH_S
    assert advice_to(ANN) == ("10 of 10", 4)


async def test_a_history_that_does_not_answer_leaves_the_toolset_shown(
    index: FakeIndex, history: Usage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise HistoryUnavailable("no answer")

    monkeypatch.setattr(history, "sums", fail)

    shown = await shown_to(index, history, replace(ANN, toolset="dev"))

    assert len(shown["tools"]) == 5
    assert shown["advice"] == ["The calls of the last weeks cannot be read at the moment."]


async def test_the_page_shows_the_advice_in_one_table(index: FakeIndex, history: Usage) -> None:
    record_calls(history, "anyone", {"git:log": 9})
    record_shown(history, "anyone", {"time:zones": 4})
    async with http_client(app_of(index, usage=history)) as http:
        page = await http.get("/ui/advice?toolset=dev&budget=500")
        empty = await http.get("/ui/advice?toolset=&budget=")
        unknown = await http.get("/ui/advice?toolset=none")
        invalid = await http.get("/api/advice?budget=0")
        found = Advice.model_validate((await http.get("/api/advice?toolset=dev")).json())

    assert (page.status_code, empty.status_code, unknown.status_code, invalid.status_code) == (200, 200, 404, 400)
    assert "Without time:zones (0 calls), " in page.text
    assert 'href="/ui/tools/time%3Azones"' in page.text
    assert 'href="/ui/tools/git%3Alog"' in page.text
    assert re.findall(r'<label for="(.*?)">(.*?)</label>', page.text) == [
        ("toolset", "Toolset"),
        ("budget", "Budget in tokens"),
    ]
    assert re.findall(r'<th scope="col".*?>(.*?)</th>', page.text) == ["Tool", "Tokens", "Calls", "Advice"]
    assert "<script" not in page.text
    assert "There is no toolset none for you." in unknown.text
    assert invalid.json()["error"].startswith("budget")
    assert [(tool.name, tool.verdict) for tool in found.tools][:2] == [("git:log", "keep"), ("time:zones", "drop")]


async def test_names_of_tools_are_no_markup_of_the_page(history: Usage) -> None:
    name = "<script>alert(1)</script>{{ 7*191 }}"
    history.add({RowKey(DAY, "ann", "s", name): {"answers": 2, "calls": 1}})
    async with http_client(app_of(index_of(make_tool("s", name)), usage=history)) as http:
        page = await http.get("/ui/advice?toolset=%22%3E%3Cscript%3E")
        shown = await http.get("/ui/advice")

    assert page.status_code == 400
    assert "&lt;script&gt;alert(1)" in shown.text
    assert "1337" not in shown.text
    assert "<script" not in page.text + shown.text
    assert shown.headers["content-security-policy"] == CONTENT_SECURITY_POLICY


async def test_the_page_is_within_the_scope_of_its_token(index: FakeIndex, history: Usage, tmp_path: Path) -> None:
    record_calls(history, "ann", {"git:log": 1})
    record_calls(history, "bob", {"ops:kill": 9, "git:log": 9})
    known = static(tmp_path / "tokens.toml", ann=entry("secret-of-ann", ["dev"]))
    async with http_client(app_of(index, known, usage=history), "secret-of-ann") as http:
        of_ann = await http.get("/api/advice")
    async with http_client(app_of(index, known, usage=history)) as http:
        unsigned = await http.get("/api/advice")

    assert unsigned.status_code == 401
    assert "ops:kill" not in of_ann.text
    assert Advice.model_validate(of_ann.json()).calls == 1


def test_tokens_are_labelled_as_estimated_where_a_tool_could_not_be_counted(history: Usage) -> None:
    record_calls(history, "ann", {"s:t": 1})

    found = advise(index_of(make_tool("s", "t", model_tokens={})), history)

    assert found.estimated
    assert "estimated tokens" in found.sentences[0]


# --- the choice over any costs and calls, against every possible choice ---

# tokens and calls
tools_of_costs = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=9).map(
    lambda rows: [
        AdvisedTool(name=f"s:{number}", tokens=tokens, calls=calls) for number, (tokens, calls) in enumerate(rows)
    ]
)
budgets = st.integers(0, 120)


def used(*rows: tuple[int, int]) -> list[AdvisedTool]:
    return [AdvisedTool(name=f"s:{number}", tokens=tokens, calls=calls) for number, (tokens, calls) in enumerate(rows)]


def most_calls(tools: list[AdvisedTool], budget: int) -> int:
    """Return the calls of the best choice, among all."""
    every = (choice for size in range(len(tools) + 1) for choice in combinations(tools, size))
    return max(calls_of(choice) for choice in every if tokens_of(choice) <= budget)


@settings(max_examples=examples(300))
@given(tools=tools_of_costs, budget=budgets)
# by calls per token alone, the small tool takes the room of the great one
@example(used((1, 2), (40, 12)), 40)
# by calls alone, the great tool takes the room of two
@example(used((40, 12), (20, 11), (20, 11)), 40)
def test_the_choice_fits_and_covers_at_least_half_of_the_best(tools: list[AdvisedTool], budget: int) -> None:
    chosen = best_within(tools, budget)

    assert tokens_of(chosen) <= budget
    assert len({tool.name for tool in chosen}) == len(chosen)
    assert chosen == sorted(chosen, key=by_calls)
    assert all(tool.calls for tool in chosen)
    assert 2 * calls_of(chosen) >= most_calls(tools, budget)


@settings(max_examples=examples(300))
@given(tools=tools_of_costs, budget=budgets)
@example(used((1, 2), (40, 12)), 40)
def test_the_choice_covers_no_fewer_calls_than_an_enforced_budget(tools: list[AdvisedTool], budget: int) -> None:
    counts = frozenset((tool.name, tool.calls) for tool in tools)
    indexed = [make_tool("s", tool.name.removeprefix("s:"), model_tokens=tool.tokens) for tool in tools]
    caller = Caller("ann", limit_tokens=budget)

    kept = apply_budget(by_use(indexed, counts, "cl100k_base"), caller, "cl100k_base").kept

    calls = dict(counts)
    assert calls_of(best_within(tools, budget)) >= sum(calls[tool.qualified_name] for tool in kept)
