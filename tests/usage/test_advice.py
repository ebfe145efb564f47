"""Advice from real histories and indexes, as callers see it over MCP and on the page."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from itertools import starmap
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from mcp import Client

from query.caller import Caller
from query.catalogue import Catalogue
from query.mcp import service_of
from query.records import Ledger
from query.tools.get_active_toolset import GetActiveToolset, ToolsetRequest
from query.toolsets import advice as of_toolset
from query.toolsets.advice import Advice, advice_for
from query.toolsets.offers import Offers
from query.usage.recent_calls import REFRESH_S
from query.usage.store_redis import RedisUsage
from query.usage.store_sqlite import SqliteUsage
from query.usage.usage import Counts, RowKey, Usage, today
from query.web.page import CONTENT_SECURITY_POLICY
from shared.catalog import FEATURES_VERSION, Endpoint, IndexedTool, ServerRecord, ToolDefinition
from shared.errors import HistoryUnavailable, ToolsetUnknown
from shared.index.tools import ToolIndex
from shared.service.redis import connect
from shared.toolset import Toolset
from tests.support import replicated
from tests.support.calling import upstreams_to
from tests.support.fake_redis import FakeRedisServer
from tests.support.fakes import FakeEmbedder, ingested, make_tool
from tests.support.http_callers import app_of, entry, http_client, static
from tests.support.index_engines import opened

pytestmark = [pytest.mark.process, pytest.mark.anyio]

ROOT, ANN, BOB = Caller("root"), Caller("ann", frozenset({"dev"})), Caller("bob", frozenset({"dev"}))
DAY = today()
DEV = Toolset(name="dev", tools=("git", "time"))
# Model tokens; the alphabet, the cost and the calls order them differently.
COSTS = {"git:add": 300, "git:log": 100, "git:status": 100, "time:now": 50, "time:zones": 400, "ops:kill": 10}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["sqlite", "fakeredis", pytest.param("redis", marks=pytest.mark.redis)])
def history(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Usage]:
    with closing(_history(request, tmp_path)) as opened_history:
        yield opened_history


def _history(request: pytest.FixtureRequest, directory: Path) -> Usage:
    if request.param == "sqlite":
        return SqliteUsage(directory / "savings.sqlite3", 60)
    if request.param == "fakeredis":
        fake: FakeRedisServer = request.getfixturevalue("fake_redis")
        return RedisUsage(fake.client(), 60)
    return RedisUsage(connect(request.getfixturevalue("own_redis_url")), 60)


@pytest.fixture
def sqlite(tmp_path: Path) -> Generator[Usage]:
    with closing(SqliteUsage(tmp_path / "savings.sqlite3", 60)) as opened_history:
        yield opened_history


@pytest.fixture
def edge(tmp_path: Path) -> Generator[ToolIndex]:
    with opened("edge", tmp_path) as index:
        fill(index, *starmap(tool_costing, COSTS.items()))
        index.put_toolset(DEV)
        yield index


def tool_costing(qualified_name: str, tokens: int) -> IndexedTool:
    server, name = qualified_name.split(":")
    return make_tool(server, name, model_tokens=tokens, groups=["ops" if server == "ops" else "dev"])


def fill(index: ToolIndex, *tools: IndexedTool) -> None:
    """Write these tools, and the records of their servers."""
    embedder = FakeEmbedder()
    index.upsert([ingested(tool, embedder) for tool in tools])
    for revision, server in enumerate(sorted({tool.server_id for tool in tools}), start=1):
        own = [tool for tool in tools if tool.server_id == server]
        record: dict[str, Any] = {
            "server_id": server, "endpoint": Endpoint(), "revision": revision, "groups": own[0].groups,
            "tool_count": len(own), "features_version": FEATURES_VERSION, "last_listed_at": 1.0,
            "model_tokens": {"cl100k_base": sum(tool.model_counts["cl100k_base"] for tool in own)},
        }  # fmt: skip
        index.put_server(ServerRecord.model_validate(record))


def record_calls(history: Usage, caller: str, calls: Mapping[str, int], days_ago: int = 0) -> None:
    _add(history, caller, {name: {"answers": 0, "calls": count, "bytes": 9} for name, count in calls.items()}, days_ago)


def record_shown(history: Usage, caller: str, shown: Mapping[str, int]) -> None:
    _add(history, caller, {name: {"answers": count} for name, count in shown.items()})


def _add(history: Usage, caller: str, counts: Mapping[str, Counts], days_ago: int = 0) -> None:
    day = DAY - timedelta(days=days_ago)
    history.add({RowKey(day, caller, *name.split(":")): each for name, each in counts.items()})


def held(index: ToolIndex) -> Catalogue:
    return Catalogue(index, FakeEmbedder(), Ledger(index))


def advise(index: ToolIndex, history: Usage, viewer: Caller = ROOT, **asked: Any) -> Advice:
    return advice_for(viewer, held(index), history, **asked)


def names(tools: list[Any]) -> list[str]:
    return [tool.name for tool in tools]


# --- the choice ---


def test_the_advice_is_from_the_calls_of_thirty_days_in_the_history(edge: ToolIndex, history: Usage) -> None:
    record_calls(history, "ann", {"git:log": 6, "time:now": 2}, days_ago=29)
    record_calls(history, "bob", {"git:log": 3, "git:add": 1})
    record_calls(history, "bob", {"git:status": 50}, days_ago=30)
    record_shown(history, "bob", {"time:zones": 10, "git:log": 1})

    found = advise(edge, history, toolset="dev", budget=200)

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


def test_without_a_budget_a_toolset_keeps_every_tool_that_was_called(edge: ToolIndex, sqlite: Usage) -> None:
    record_calls(sqlite, "ann", {"git:add": 1, "time:now": 1})

    found = advise(edge, sqlite, toolset="dev")

    assert (found.budget_tokens, found.calls) == (950, 2)
    assert names(found.chosen) == ["time:now", "git:add"]
    assert names(found.dropped) == ["time:zones", "git:log", "git:status"]


def test_without_a_toolset_every_visible_tool_may_be_chosen_and_none_is_dropped(edge: ToolIndex, sqlite: Usage) -> None:
    record_calls(sqlite, "ann", {"ops:kill": 2, "time:zones": 1})

    found = advise(edge, sqlite)

    assert [(each.name, each.verdict) for each in found.tools] == [("ops:kill", "add"), ("time:zones", "add")]
    assert (found.toolset, found.budget_tokens) == (None, 4_000)


def test_a_tool_that_an_enforced_budget_leaves_out_is_added_in_place_of_another(edge: ToolIndex, sqlite: Usage) -> None:
    edge.put_toolset(DEV.model_copy(update={"budget_tokens": 400, "enforce": True}))
    record_calls(sqlite, "ann", {"time:zones": 9, "git:add": 8, "git:log": 7})

    found = advise(edge, sqlite, toolset="dev")

    assert [(each.name, each.verdict) for each in found.tools] == [
        ("git:add", "add"), ("git:log", "add"), ("time:zones", "drop")
    ]  # fmt: skip


def test_a_toolset_without_calls_is_advised_against_nothing(edge: ToolIndex, sqlite: Usage) -> None:
    record_shown(sqlite, "ann", {"time:zones": 3})

    found = advise(edge, sqlite, toolset="dev", budget=60)

    assert found.tools == []
    assert found.sentences == [f"No calls of these tools from {found.first_day} to {DAY}, so none is advised against."]


def test_calls_of_tools_that_are_gone_count_for_nothing(edge: ToolIndex, sqlite: Usage) -> None:
    record_calls(sqlite, "ann", {"git:gone": 9, "git:log": 1})

    assert advise(edge, sqlite).calls == 1


def test_calls_of_replicas_are_those_of_their_set(tmp_path: Path, sqlite: Usage) -> None:
    record_calls(sqlite, "ann", {"web0:sum": 2})
    record_calls(sqlite, "bob", {"web1:sum": 3})
    with opened("edge", tmp_path) as index:
        for server in ("web0", "web1"):
            replicated.put_server(index, server, [replicated.tool("sum")])

        found = advise(index, sqlite)

    assert [(each.name, each.calls) for each in found.tools] == [("web0:sum", 5)]


def test_tools_outside_the_toolset_take_no_place_among_the_most_called(
    edge: ToolIndex, sqlite: Usage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_toolset, "MOST_CALLED", 1)
    record_calls(sqlite, "ann", {"ops:kill": 9, "git:log": 1})

    assert names(advise(edge, sqlite, toolset="dev").chosen) == ["git:log"]


def test_a_tool_that_cannot_be_offered_is_not_advised(tmp_path: Path, sqlite: Usage) -> None:
    broken = ToolDefinition.from_wire('{"name": "t", "inputSchema": "none"}')
    record_calls(sqlite, "ann", {"s:t": 1})
    with opened("edge", tmp_path) as index:
        fill(index, replace(make_tool("s", "t"), definition=broken))

        assert advise(index, sqlite).tools == []


# --- rights ---


def test_a_caller_with_groups_sees_its_own_calls_of_its_own_tools(edge: ToolIndex, sqlite: Usage) -> None:
    record_calls(sqlite, "ann", {"git:log": 1, "ops:kill": 5})
    record_calls(sqlite, "bob", {"git:add": 7})

    found = advise(edge, sqlite, ANN)

    assert (names(found.tools), found.calls) == (["git:log"], 1)


def test_a_token_for_one_toolset_gets_no_advice_on_another(edge: ToolIndex, sqlite: Usage) -> None:
    edge.put_toolset(Toolset(name="all", tools=("git", "time", "ops")))

    with pytest.raises(ToolsetUnknown, match="no toolset all"):
        advise(edge, sqlite, Caller("ann", toolset="dev"), toolset="all")
    with pytest.raises(ToolsetUnknown):
        advise(edge, sqlite, toolset="none")


# --- where it is shown ---


async def shown_to(index: ToolIndex, history: Usage, caller: Caller, **arguments: Any) -> dict[str, Any]:
    """Return the answer of `get_active_toolset`."""
    upstreams = upstreams_to({})
    catalogue = replace(held(index), usage=history)
    async with Client(service_of(catalogue, upstreams, lambda _: caller)) as client:
        result = await client.call_tool("get_active_toolset", arguments)
    shown: dict[str, Any] = result.structured_content or {}
    return shown


async def test_get_active_toolset_advises_its_caller_in_short_sentences(edge: ToolIndex, history: Usage) -> None:
    record_calls(history, "ann", {"git:log": 9, "git:add": 1})
    record_calls(history, "bob", {"time:zones": 30})

    own = await shown_to(edge, history, replace(ANN, toolset="dev"))
    every = await shown_to(edge, history, ROOT, name="dev")

    assert own["advice"] == [
        f"2 tools of 400 tokens had 10 of 10 calls from {DAY - timedelta(days=29)} to {DAY}.",
        "Without time:zones (0 calls), git:status (0 calls), time:now (0 calls), each tools/list has 550 tokens less.",
    ]
    assert "had 40 of 40 calls" in every["advice"][0]


async def test_without_a_toolset_the_advice_is_on_all_tools_that_had_calls(edge: ToolIndex, sqlite: Usage) -> None:
    without_calls = await shown_to(edge, sqlite, ROOT)
    record_calls(sqlite, "ann", {"git:log": 9})

    shown = await shown_to(edge, sqlite, ROOT)

    assert "advice" not in without_calls
    assert shown["advice"][0].startswith("1 tool of 100 tokens had 9 of 9 calls")


async def test_the_budget_of_the_toolset_limits_the_advice(edge: ToolIndex, sqlite: Usage) -> None:
    edge.put_toolset(DEV.model_copy(update={"budget_tokens": 100}))
    record_calls(sqlite, "ann", {"git:log": 9, "git:add": 1})

    shown = await shown_to(edge, sqlite, replace(ANN, toolset="dev"))

    assert shown["advice"][0].startswith("1 tool of 100 tokens had 9 of 10 calls")
    assert shown["advice"][1:] == [
        "Without time:zones (0 calls), git:add (1 call), git:status (0 calls), 1 more, "
        "each tools/list has 850 tokens less."
    ]


def test_the_advice_of_a_caller_is_kept_for_minutes(
    edge: ToolIndex, sqlite: Usage, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_calls(sqlite, "ann", {"git:log": 9})
    record_calls(sqlite, "bob", {"git:add": 7})
    reads, now_s = Mock(side_effect=sqlite.sums), [0.0]
    monkeypatch.setattr(sqlite, "sums", reads)
    catalogue = replace(held(edge), usage=sqlite)
    tool = GetActiveToolset(catalogue, Offers(catalogue), lambda: now_s[0])

    def advice_to(caller: Caller) -> tuple[str, int]:
        """Return the calls in the advice, and the reads of the store so far."""
        first = tool.respond(ToolsetRequest(name="dev"), caller)["advice"][0]
        return first.partition(" had ")[2].partition(" calls")[0], reads.call_count

    assert [advice_to(ANN), advice_to(ANN), advice_to(BOB)] == [("9 of 9", 1), ("9 of 9", 1), ("7 of 7", 2)]
    edge.put_toolset(DEV.model_copy(update={"budget_tokens": 200}))
    assert advice_to(ANN) == ("9 of 9", 3)
    record_calls(sqlite, "ann", {"git:log": 1})
    now_s[0] = REFRESH_S
    assert advice_to(ANN) == ("10 of 10", 4)


async def test_a_history_that_does_not_answer_leaves_the_toolset_shown(
    edge: ToolIndex, sqlite: Usage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise HistoryUnavailable("no answer")

    monkeypatch.setattr(sqlite, "sums", fail)

    shown = await shown_to(edge, sqlite, replace(ANN, toolset="dev"))

    assert len(shown["tools"]) == 5
    assert shown["advice"] == ["The calls of the last weeks cannot be read at the moment."]


async def test_the_page_shows_the_advice_in_one_table(edge: ToolIndex, sqlite: Usage) -> None:
    record_calls(sqlite, "anyone", {"git:log": 9})
    record_shown(sqlite, "anyone", {"time:zones": 4})
    async with http_client(app_of(edge, usage=sqlite)) as http:
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


async def test_names_of_tools_are_no_markup_of_the_page(tmp_path: Path, sqlite: Usage) -> None:
    name = "<script>alert(1)</script>{{ 7*191 }}"
    sqlite.add({RowKey(DAY, "ann", "s", name): {"answers": 2, "calls": 1}})
    with opened("edge", tmp_path) as index:
        fill(index, make_tool("s", name))
        async with http_client(app_of(index, usage=sqlite)) as http:
            page = await http.get("/ui/advice?toolset=%22%3E%3Cscript%3E")
            shown = await http.get("/ui/advice")

    assert page.status_code == 400
    assert "&lt;script&gt;alert(1)" in shown.text
    assert "1337" not in shown.text
    assert "<script" not in page.text + shown.text
    assert shown.headers["content-security-policy"] == CONTENT_SECURITY_POLICY


async def test_the_page_is_within_the_scope_of_its_token(edge: ToolIndex, sqlite: Usage, tmp_path: Path) -> None:
    record_calls(sqlite, "ann", {"git:log": 1})
    record_calls(sqlite, "bob", {"ops:kill": 9, "git:log": 9})
    known = static(tmp_path / "tokens.toml", ann=entry("secret-of-ann", ["dev"]))
    async with http_client(app_of(edge, known, usage=sqlite), "secret-of-ann") as http:
        of_ann = await http.get("/api/advice")
    async with http_client(app_of(edge, known, usage=sqlite)) as http:
        unsigned = await http.get("/api/advice")

    assert unsigned.status_code == 401
    assert "ops:kill" not in of_ann.text
    assert Advice.model_validate(of_ann.json()).calls == 1


def test_tokens_are_labelled_as_estimated_where_a_tool_could_not_be_counted(tmp_path: Path, sqlite: Usage) -> None:
    record_calls(sqlite, "ann", {"s:t": 1})
    with opened("edge", tmp_path) as index:
        index.upsert([ingested(make_tool("s", "t", model_tokens={}), FakeEmbedder())])
        index.put_server(ServerRecord(server_id="s", endpoint=Endpoint(), revision=1))

        found = advise(index, sqlite)

    assert found.estimated
    assert "estimated tokens" in found.sentences[0]
