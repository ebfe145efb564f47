"""Advice from real histories and indexes, as callers see it over MCP and on the page."""

from __future__ import annotations

import json
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

from query.advice import rivals as of_rivals
from query.advice import use as of_use
from query.advice.report import Advice, advice_for
from query.caller import Caller
from query.catalogue import Catalogue
from query.history.events import TOOLS_LIST
from query.history.periods import today
from query.history.recent_calls import REFRESH_S
from query.history.recorder import UsageRecorder
from query.history.redis_store import RedisHistory
from query.history.sqlite_store import SqliteHistory
from query.history.store import Counts, RowKey, SavingsHistory
from query.paging.policy import ResponsePolicy
from query.savings.ledger import Ledger
from query.server.mcp import service_of
from query.tools.get_active_toolset import GetActiveToolset
from query.toolsets.report import ToolsetRequest
from query.web.page import CONTENT_SECURITY_POLICY
from shared.catalog import FEATURES_VERSION, Endpoint, IndexedTool, ServerRecord, ToolDefinition, digest
from shared.errors import HistoryUnavailable, ToolsetUnknown
from shared.index.tools import ToolIndex
from shared.service.redis import connect
from shared.toolset import Toolset
from tests.support import replicated
from tests.support.calling import upstreams_to
from tests.support.fake_redis import FakeRedisServer
from tests.support.fakes import FakeEmbedder, ingested, make_tool
from tests.support.http_callers import app_of, entry, http_client, static
from tests.support.index_engines import ENGINES, opened

pytestmark = pytest.mark.anyio

ROOT, ANN, BOB = Caller("root"), Caller("ann", frozenset({"dev"})), Caller("bob", frozenset({"dev"}))
DAY = today()
DEV = Toolset(name="dev", tools=("git", "time"))
# Model tokens; the alphabet, the cost and the calls order them differently.
COSTS = {"git:add": 300, "git:log": 100, "git:status": 100, "time:now": 50, "time:zones": 400, "ops:kill": 10}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["sqlite", "fakeredis", pytest.param("redis", marks=pytest.mark.redis)])
def history(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[SavingsHistory]:
    with closing(_history(request, tmp_path)) as opened_history:
        yield opened_history


def _history(request: pytest.FixtureRequest, directory: Path) -> SavingsHistory:
    if request.param == "sqlite":
        return SqliteHistory(directory / "savings.sqlite3", 60)
    if request.param == "fakeredis":
        fake: FakeRedisServer = request.getfixturevalue("fake_redis")
        return RedisHistory(fake.client(), 60)
    return RedisHistory(connect(request.getfixturevalue("own_redis_url")), 60)


@pytest.fixture
def sqlite(tmp_path: Path) -> Generator[SavingsHistory]:
    with closing(SqliteHistory(tmp_path / "savings.sqlite3", 60)) as opened_history:
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


def record_calls(history: SavingsHistory, caller: str, calls: Mapping[str, int], days_ago: int = 0) -> None:
    _add(history, caller, {name: {"answers": 0, "calls": count, "bytes": 9} for name, count in calls.items()}, days_ago)


def record_shown(history: SavingsHistory, caller: str, shown: Mapping[str, int]) -> None:
    _add(history, caller, {name: {"answers": count} for name, count in shown.items()})


def _add(history: SavingsHistory, caller: str, counts: Mapping[str, Counts], days_ago: int = 0) -> None:
    day = DAY - timedelta(days=days_ago)
    history.add({RowKey(day, caller, *name.split(":")): each for name, each in counts.items()})


def held(index: ToolIndex) -> Catalogue:
    return Catalogue(index, FakeEmbedder(), Ledger(index))


def advise(index: ToolIndex, history: SavingsHistory, viewer: Caller = ROOT, **asked: Any) -> Advice:
    return advice_for(viewer, held(index), history, **asked)


def names(tools: list[Any]) -> list[str]:
    return [tool.name for tool in tools]


# --- the choice ---


def test_the_advice_is_from_the_calls_of_thirty_days_in_the_history(edge: ToolIndex, history: SavingsHistory) -> None:
    record_calls(history, "ann", {"git:log": 6, "time:now": 2}, days_ago=29)
    record_calls(history, "bob", {"git:log": 3, "git:add": 1})
    record_calls(history, "bob", {"git:status": 50}, days_ago=30)
    record_shown(history, "bob", {"time:zones": 10, "git:log": 1})
    history.add({RowKey(DAY, "bob", "", TOOLS_LIST): {"answers": 4, "tokens": 10}})

    found = advise(edge, history, toolset="dev", budget=200)

    assert [(each.name, each.calls, each.callers) for each in found.advised.tools] == [
        ("git:log", 9, 2),
        ("time:now", 2, 1),
    ]
    assert (found.advised.tokens, found.advised.calls, found.calls) == (150, 11, 12)
    assert (found.offered.tokens, found.offered.calls) == (950, 12)
    assert [(each.name, each.calls) for each in found.dropped] == [("time:zones", 0), ("git:add", 1), ("git:status", 0)]
    assert [(each.name, each.shown, each.shown_tokens) for each in found.shown_most] == [
        ("time:zones", 10, 4_000), ("git:log", 1, 100)
    ]  # fmt: skip
    assert found.lists == 4


def test_a_choice_that_covers_too_few_calls_names_the_budget_that_covers_most(
    edge: ToolIndex, sqlite: SavingsHistory
) -> None:
    record_calls(sqlite, "ann", {"git:log": 6, "time:now": 3, "git:add": 3})

    small = advise(edge, sqlite, toolset="dev", budget=100)
    whole = advise(edge, sqlite, toolset="dev", budget=small.needed_tokens)

    assert f"A budget of {small.needed_tokens} tokens (measured) covers 95% of these calls." in small.sentences
    assert whole.advised.calls == 12
    assert not [sentence for sentence in whole.sentences if "A budget of" in sentence]


@pytest.mark.parametrize("is_leaner", [False, True])
def test_shorter_schemas_are_offered_with_their_tokens_until_they_are_served(
    tmp_path: Path, sqlite: SavingsHistory, is_leaner: bool
) -> None:
    schema = {"type": "object", "properties": {"repo_path": {"type": "string", "title": "Repo Path"}}}
    definition = ToolDefinition.from_wire(json.dumps({"name": "log", "inputSchema": schema}))
    record_calls(sqlite, "ann", {"git:log": 6})
    with opened("edge", tmp_path) as index:
        fill(index, replace(tool_costing("git:log", 100), definition=definition))
        catalogue = replace(held(index), response_policy=ResponsePolicy(has_leaner_definitions=is_leaner))

        found = advice_for(ROOT, catalogue, sqlite)

    assert (found.leaner_saves.keys() == {"titles"}) is not is_leaner
    saved = sum(found.leaner_saves.values())
    named = f"sends {saved} tokens (measured) less: titles that repeat names ({saved})."
    assert (named in found.sentences[-1]) is not is_leaner


def test_without_a_budget_a_toolset_keeps_every_tool_that_was_called(edge: ToolIndex, sqlite: SavingsHistory) -> None:
    record_calls(sqlite, "ann", {"git:add": 1, "time:now": 1})

    found = advise(edge, sqlite, toolset="dev")

    assert (found.budget_tokens, found.advised.calls) == (950, 2)
    assert names(found.dropped) == ["time:zones", "git:log", "git:status"]


def test_without_a_toolset_every_visible_tool_may_be_chosen_and_none_is_dropped(
    edge: ToolIndex, sqlite: SavingsHistory
) -> None:
    record_calls(sqlite, "ann", {"ops:kill": 2, "time:zones": 1})

    found = advise(edge, sqlite)

    assert names(found.advised.tools) == ["ops:kill", "time:zones"]
    assert (found.toolset, found.offered.tools, found.dropped, found.budget_tokens) == (None, [], [], 4_000)


def test_a_toolset_without_calls_is_advised_against_nothing(edge: ToolIndex, sqlite: SavingsHistory) -> None:
    record_shown(sqlite, "ann", {"time:zones": 3})

    found = advise(edge, sqlite, toolset="dev", budget=60)

    assert found.dropped == []
    assert found.sentences == [
        f"No calls of these tools from {found.first_day} to {DAY} (measured), so none is advised against."
    ]


def test_calls_of_tools_that_are_gone_count_for_nothing(edge: ToolIndex, sqlite: SavingsHistory) -> None:
    record_calls(sqlite, "ann", {"git:gone": 9, "git:log": 1})

    assert advise(edge, sqlite).calls == 1


def test_calls_of_replicas_are_those_of_their_set(tmp_path: Path, sqlite: SavingsHistory) -> None:
    record_calls(sqlite, "ann", {"web0:sum": 2})
    record_calls(sqlite, "bob", {"web1:sum": 3})
    with opened("edge", tmp_path) as index:
        for server in ("web0", "web1"):
            replicated.put_server(index, server, [replicated.tool("sum")])

        found = advise(index, sqlite)

    assert [(each.name, each.calls, each.callers) for each in found.advised.tools] == [("web0:sum", 5, 2)]
    assert found.rivals == []


def test_tools_outside_the_toolset_take_no_place_among_the_most_used(
    edge: ToolIndex, sqlite: SavingsHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_use, "MOST_USED", 1)
    record_calls(sqlite, "ann", {"ops:kill": 9, "git:log": 1})

    assert names(advise(edge, sqlite, toolset="dev").advised.tools) == ["git:log"]


def test_a_tool_that_cannot_be_offered_is_not_advised(tmp_path: Path, sqlite: SavingsHistory) -> None:
    broken = ToolDefinition.from_wire('{"name": "t", "inputSchema": "none"}')
    record_calls(sqlite, "ann", {"s:t": 1})
    with opened("edge", tmp_path) as index:
        fill(index, replace(make_tool("s", "t"), definition=broken))

        assert advise(index, sqlite).advised.tools == []


# --- rights ---


def test_a_caller_with_groups_sees_its_own_calls_of_its_own_tools(edge: ToolIndex, sqlite: SavingsHistory) -> None:
    record_calls(sqlite, "ann", {"git:log": 1, "ops:kill": 5})
    record_calls(sqlite, "bob", {"git:add": 7})
    record_shown(sqlite, "bob", {"time:zones": 7})
    sqlite.add({RowKey(DAY, "bob", "", TOOLS_LIST): {"answers": 4, "tokens": 10}})

    found = advise(edge, sqlite, ANN)

    assert (names(found.advised.tools), found.calls, found.shown_most, found.lists) == (["git:log"], 1, [], 0)


def test_a_token_for_one_toolset_gets_no_advice_on_another(edge: ToolIndex, sqlite: SavingsHistory) -> None:
    edge.put_toolset(Toolset(name="all", tools=("git", "time", "ops")))

    with pytest.raises(ToolsetUnknown, match="no toolset all"):
        advise(edge, sqlite, Caller("ann", toolset="dev"), toolset="all")
    with pytest.raises(ToolsetUnknown):
        advise(edge, sqlite, toolset="none")


# --- rivals ---


def tool_with(server: str, name: str, text: str, **types: str) -> IndexedTool:
    properties = {parameter: {"type": kind} for parameter, kind in types.items()}
    schema = {"type": "object", "properties": properties, "required": list(types)}
    wire = json.dumps({"name": name, "description": text, "inputSchema": schema})
    definition = ToolDefinition.from_wire(wire)
    return replace(make_tool(server, name), definition=definition, digest=digest(definition, server))


@pytest.mark.parametrize("engine", ENGINES)
def test_rivals_are_near_tools_of_other_servers_with_the_same_types(
    tmp_path: Path, sqlite: SavingsHistory, engine: str
) -> None:
    text = "fetch the content of a web page"
    record_calls(sqlite, "ann", {"b:fetch": 3})
    record_shown(sqlite, "ann", {"a:fetch": 2})
    called = tool_with("b", "fetch", text, url="string")
    with opened(engine, tmp_path) as index:
        fill(
            index,
            tool_with("a", "fetch", text, url="string"),
            called,
            replace(called, server_id="copy"),
            tool_with("b", "fetch_again", text, url="string"),  # of the same server
            tool_with("c", "fetch", text, url="string", method="string"),  # needs more
            tool_with("d", "sum", "add two numbers", url="string"),  # is far
        )

        found = advise(index, sqlite)

    pairs = {tuple(names(list(pair.tools))) for pair in found.rivals}
    assert ("b:fetch", "a:fetch") in pairs
    assert {name for pair in pairs for name in pair} <= {"a:fetch", "b:fetch", "b:fetch_again", "copy:fetch"}
    assert ("b:fetch", "copy:fetch") not in pairs
    assert all(pair.tools[0].name.split(":")[0] != pair.tools[1].name.split(":")[0] for pair in found.rivals)
    assert [pair.similarity for pair in found.rivals] == sorted(
        (pair.similarity for pair in found.rivals), reverse=True
    )


def test_rivals_outside_the_scope_of_the_viewer_are_not_named(tmp_path: Path, sqlite: SavingsHistory) -> None:
    text = "fetch the content of a web page"
    record_calls(sqlite, "ann", {"a:fetch": 3})
    with opened("edge", tmp_path) as index:
        fill(
            index,
            replace(tool_with("a", "fetch", text, url="string"), groups=frozenset({"dev"})),
            replace(tool_with("b", "fetch", text, url="string"), groups=frozenset({"ops"})),
        )

        of_ann, of_root = advise(index, sqlite, ANN), advise(index, sqlite)

    assert (of_ann.rivals, len(of_root.rivals)) == ([], 1)


def test_only_the_most_used_tools_are_compared(
    tmp_path: Path, sqlite: SavingsHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_rivals, "COMPARED", 1)
    record_calls(sqlite, "ann", {"c:sum": 9, "a:fetch": 3})
    with opened("edge", tmp_path) as index:
        fill(
            index,
            *(tool_with(server, "fetch", "fetch a web page", url="string") for server in "ab"),
            tool_with("c", "sum", "add two numbers"),
        )

        assert advise(index, sqlite).rivals == []


# --- where it is shown ---


async def shown_to(index: ToolIndex, history: SavingsHistory, caller: Caller, **arguments: Any) -> dict[str, Any]:
    """Return the answer of `get_active_toolset`."""
    with closing(UsageRecorder(history)) as recorder, closing(upstreams_to({})) as upstreams:
        catalogue = replace(held(index), recorder=recorder)
        async with Client(service_of(catalogue, upstreams, lambda _: caller)) as client:
            result = await client.call_tool("get_active_toolset", arguments)
    shown: dict[str, Any] = result.structured_content or {}
    return shown


async def test_get_active_toolset_advises_its_caller_in_short_sentences(
    edge: ToolIndex, history: SavingsHistory
) -> None:
    record_calls(history, "ann", {"git:log": 9, "git:add": 1})
    record_calls(history, "bob", {"time:zones": 30})

    own = await shown_to(edge, history, replace(ANN, toolset="dev"))
    every = await shown_to(edge, history, ROOT, name="dev")

    assert own["advice"] == [
        f"2 tools of 400 tokens (measured) had 10 of 10 calls from {DAY - timedelta(days=29)} to {DAY} (measured).",
        "Without time:zones you save 400 tokens (measured) in each tools/list; it had 0 calls (measured).",
        "Without git:status you save 100 tokens (measured) in each tools/list; it had 0 calls (measured).",
        "Without time:now you save 50 tokens (measured) in each tools/list; it had 0 calls (measured).",
    ]
    assert "had 40 of 40 calls" in every["advice"][0]


async def test_without_a_toolset_the_advice_is_on_all_tools_that_had_calls(
    edge: ToolIndex, sqlite: SavingsHistory
) -> None:
    without_calls = await shown_to(edge, sqlite, ROOT)
    record_calls(sqlite, "ann", {"git:log": 9})

    shown = await shown_to(edge, sqlite, ROOT)

    assert "advice" not in without_calls
    assert shown["advice"][0].startswith("1 tool of 100 tokens (measured) had 9 of 9 calls")


async def test_shorter_definitions_make_the_tokens_of_the_advice_estimates(
    edge: ToolIndex, sqlite: SavingsHistory
) -> None:
    record_calls(sqlite, "ann", {"git:log": 9})
    policy = ResponsePolicy(has_leaner_definitions=True)

    found = advice_for(ROOT, replace(held(edge), response_policy=policy), sqlite)

    assert found.labels["tokens"] == "estimated"


async def test_get_active_toolset_names_rivals_within_the_toolset(edge: ToolIndex, sqlite: SavingsHistory) -> None:
    fill(edge, *(tool_with(server, "fetch", "fetch a web page", url="string") for server in ("one", "two")))
    edge.put_toolset(DEV.model_copy(update={"tools": ("one", "two")}))
    record_calls(sqlite, "ann", {"one:fetch": 3})

    shown = await shown_to(edge, sqlite, ROOT, name="dev")

    assert shown["advice"][-1].startswith("one:fetch and two:fetch seem to do the same (cosine ")


async def test_the_budget_of_the_toolset_limits_the_advice(edge: ToolIndex, sqlite: SavingsHistory) -> None:
    edge.put_toolset(DEV.model_copy(update={"budget_tokens": 100}))
    record_calls(sqlite, "ann", {"git:log": 9, "git:add": 1})

    shown = await shown_to(edge, sqlite, replace(ANN, toolset="dev"))

    assert shown["advice"][0].startswith("1 tool of 100 tokens (measured) had 9 of 10 calls")
    assert any(
        line.startswith("Without git:add you save 300") and "it had 1 call (" in line for line in shown["advice"]
    )


def test_the_advice_of_a_caller_is_kept_for_minutes(
    edge: ToolIndex, sqlite: SavingsHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_calls(sqlite, "ann", {"git:log": 9})
    record_calls(sqlite, "bob", {"git:add": 7})
    reads, now_s = Mock(side_effect=sqlite.sums), [0.0]
    monkeypatch.setattr(sqlite, "sums", reads)
    with closing(UsageRecorder(sqlite)) as recorder:
        tool = GetActiveToolset(replace(held(edge), recorder=recorder), lambda: now_s[0])

        def advice_to(caller: Caller) -> tuple[str, int]:
            """Return the calls in the advice, and the reads of the history so far."""
            first = tool.respond(ToolsetRequest(name="dev"), caller)["advice"][0]
            return first.partition(" had ")[2].partition(" calls")[0], reads.call_count

        assert [advice_to(ANN), advice_to(ANN), advice_to(BOB)] == [("9 of 9", 1), ("9 of 9", 1), ("7 of 7", 2)]
        edge.put_toolset(DEV.model_copy(update={"budget_tokens": 200}))
        assert advice_to(ANN) == ("9 of 9", 3)
        record_calls(sqlite, "ann", {"git:log": 1})
        now_s[0] = REFRESH_S
        assert advice_to(ANN) == ("10 of 10", 4)


async def test_a_history_that_does_not_answer_leaves_the_toolset_shown(
    edge: ToolIndex, sqlite: SavingsHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise HistoryUnavailable("no answer")

    monkeypatch.setattr(sqlite, "sums", fail)

    shown = await shown_to(edge, sqlite, replace(ANN, toolset="dev"))

    assert len(shown["tools"]) == 5
    assert shown["advice"] == ["The calls of the last weeks cannot be read at the moment."]


async def test_the_page_shows_and_labels_the_advice(edge: ToolIndex, sqlite: SavingsHistory) -> None:
    record_calls(sqlite, "anyone", {"git:log": 9})
    record_shown(sqlite, "anyone", {"time:zones": 4})
    with closing(UsageRecorder(sqlite)) as recorder:
        async with http_client(app_of(edge, savings=recorder)) as http:
            page = await http.get("/ui/advice?toolset=dev&budget=500")
            empty = await http.get("/ui/advice?toolset=&budget=")
            unknown = await http.get("/ui/advice?toolset=none")
            invalid = await http.get("/ui/advice.json?budget=0")
            found = Advice.model_validate((await http.get("/ui/advice.json?toolset=dev")).json())

    assert (page.status_code, empty.status_code, unknown.status_code, invalid.status_code) == (200, 200, 404, 400)
    assert "Without time:zones you save 400 tokens (measured)" in page.text
    assert 'href="/ui/tools/time%3Azones"' in page.text
    assert 'href="/ui/tools/git%3Alog"' in page.text
    assert "Tools that cost most in answers</h2>" in page.text
    assert re.findall(r'<label for="(.*?)">(.*?)</label>', page.text) == [
        ("toolset", "Toolset"),
        ("budget", "Budget in tokens"),
    ]
    heads = set(re.findall(r'<th scope="col" class="n">(.*?)</th>', page.text))
    assert {"Tokens (measured)", "Calls (measured)", "Tokens in answers (estimated)"} <= heads
    assert not [head for head in heads if "(" not in head]
    assert "<script" not in page.text
    assert "There is no toolset none for you." in unknown.text
    assert invalid.json()["error"].startswith("budget")
    assert found.labels["tokens"] == "measured"


async def test_names_of_tools_are_no_markup_of_the_page(tmp_path: Path, sqlite: SavingsHistory) -> None:
    name = "<script>alert(1)</script>{{ 7*191 }}"
    sqlite.add({RowKey(DAY, "ann", "s", name): {"answers": 2, "calls": 1}})
    with opened("edge", tmp_path) as index, closing(UsageRecorder(sqlite)) as recorder:
        fill(index, make_tool("s", name))
        async with http_client(app_of(index, savings=recorder)) as http:
            page = await http.get("/ui/advice?toolset=%22%3E%3Cscript%3E")
            shown = await http.get("/ui/advice")

    assert page.status_code == 400
    assert "&lt;script&gt;alert(1)" in shown.text
    assert "1337" not in shown.text
    assert "<script" not in page.text + shown.text
    assert shown.headers["content-security-policy"] == CONTENT_SECURITY_POLICY


async def test_the_page_is_within_the_scope_of_its_token(
    edge: ToolIndex, sqlite: SavingsHistory, tmp_path: Path
) -> None:
    record_calls(sqlite, "ann", {"git:log": 1})
    record_calls(sqlite, "bob", {"ops:kill": 9, "git:log": 9})
    known = static(tmp_path / "tokens.toml", ann=entry("secret-of-ann", ["dev"]))
    with closing(UsageRecorder(sqlite)) as recorder:
        app = app_of(edge, known, savings=recorder)
        async with http_client(app, "secret-of-ann") as http:
            of_ann = await http.get("/ui/advice.json")
        async with http_client(app_of(edge, known, savings=recorder)) as http:
            unsigned = await http.get("/ui/advice.json")

    assert unsigned.status_code == 401
    assert "ops:kill" not in of_ann.text
    assert Advice.model_validate(of_ann.json()).calls == 1


def test_tokens_are_labelled_as_estimated_where_a_tool_could_not_be_counted(
    tmp_path: Path, sqlite: SavingsHistory
) -> None:
    record_calls(sqlite, "ann", {"s:t": 1})
    with opened("edge", tmp_path) as index:
        index.upsert([ingested(make_tool("s", "t", model_tokens={}), FakeEmbedder())])
        index.put_server(ServerRecord(server_id="s", endpoint=Endpoint(), revision=1))

        found = advise(index, sqlite)

    assert (found.labels["tokens"], found.labels["calls"]) == ("estimated", "measured")
    assert "(estimated)" in found.sentences[0]
