from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from query.caller import Caller
from query.catalogue import Catalogue
from query.history.periods import today
from query.history.recorder import UsageRecorder
from query.history.sqlite_store import SqliteHistory
from query.reports.catalogue_size import CatalogueSampler
from query.savings.ledger import Ledger
from query.server.mcp import build_server
from query.tools.get_savings_report import GET_SAVINGS_REPORT
from query.tools.registry import builtin_tools
from shared.catalog import FEATURES_VERSION, Endpoint, ServerRecord
from shared.text.tokens import counter
from shared.toolset import Selection
from tests.support.fakes import FakeEmbedder, FakeIndex, ingested, make_tool

pytestmark = pytest.mark.anyio

both_eras = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])

ANN = Caller("ann", frozenset({"team"}))
BOB = Caller("bob", frozenset({"other"}))
ROOT = Caller("root")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "savings.sqlite3"


def catalogue() -> FakeIndex:
    """Return two tools of 1,000 tokens each, of a team and of both teams."""
    index, embedder = FakeIndex(), FakeEmbedder()
    for number, (server, groups) in enumerate({"own": ["team"], "both": ["team", "other"]}.items(), start=1):
        tool = make_tool(server, f"{server}_time", "Tell the time", tokens=1_000, groups=groups)
        index.upsert([ingested(tool, embedder)])
        record = ServerRecord(
            features_version=FEATURES_VERSION, last_listed_at=1.0, server_id=server, endpoint=Endpoint(),
            groups=frozenset(groups),
            tool_count=1, tokens={"cl100k_base": 1_000}, model_tokens={"cl100k_base": 700}, revision=number,
        )  # fmt: skip
        index.put_server(record)
    return index


@asynccontextmanager
async def client_of(index: FakeIndex, path: Path, caller: Caller, mode: str = "auto") -> AsyncGenerator[Client]:
    """Yield a client of one process; what it was given is written when the block ends."""
    with closing(SqliteHistory(path, keep_days=2)) as history, closing(UsageRecorder(history)) as recorder:
        held = Catalogue(index, FakeEmbedder(), Ledger(index), no_match_threshold=-1, recorder=recorder)
        async with Client(build_server(builtin_tools(held), lambda _: caller), mode=mode) as client:
            yield client


async def call_json(
    index: FakeIndex, path: Path, caller: Caller, tool: str, mode: str = "auto", **arguments: Any
) -> Any:
    async with client_of(index, path, caller, mode) as client:
        result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content


async def find(index: FakeIndex, path: Path, caller: Caller, words: str = "own time") -> dict[str, Any]:
    found: dict[str, Any] = await call_json(index, path, caller, "find_tool", tool_description=words, limit=1)
    return found


@both_eras
async def test_a_report_says_what_searches_saved_net_of_what_they_cost(path: Path, mode: str) -> None:
    index = catalogue()
    answer = await find(index, path, ROOT)
    await find(index, path, ROOT)

    report = await call_json(index, path, ROOT, "get_savings_report", mode)

    assert report["totals"]["searches"] == 2
    assert report["totals"]["repeat_searches"] == 1
    assert report["totals"]["tokens_saved"] == 2 * answer["token_metrics"]["tokens_saved"] == 2_000
    own = report["net"]["own_definitions_tokens"]
    assert own > 300
    assert report["net"]["if_each_search_is_a_session"] == 2_000 - own - 2 * 1_000
    (tool,) = report["by_tool"]
    assert (tool["name"], tool["answers"], tool["definition_tokens"], tool["calls"]) == ("own:own_time", 2, 2_000, 0)
    assert tool["returned_tokens"] == 2_000
    saved = {row["name"]: row["tokens_saved"] for row in report["by_server"]}
    assert saved == {"own": 0, "both": 2_000}
    assert sum(saved.values()) == report["totals"]["tokens_saved"]
    assert f"Below {report['break_even_tools']} tools" in report["advice"]


async def test_our_own_definitions_are_those_that_the_client_is_sent(path: Path) -> None:
    index = catalogue()
    await find(index, path, ROOT)
    async with client_of(index, path, ROOT) as client:
        listed = (await client.list_tools()).tools
    report = await call_json(index, path, ROOT, "get_savings_report")

    count = counter("cl100k_base")
    sent = sum(count(tool.model_dump_json(by_alias=True, exclude_none=True)) for tool in listed)
    # a client that parses a tool and writes it again may order its keys anew
    assert report["net"]["own_definitions_tokens"] == pytest.approx(sent, rel=0.01)


async def test_a_caller_of_some_groups_sees_its_own_searches_alone(path: Path) -> None:
    index = catalogue()
    for caller in (ANN, BOB, ROOT):
        await find(index, path, caller)

    seen = {caller.name: await call_json(index, path, caller, "get_savings_report") for caller in (ANN, BOB, ROOT)}

    assert {name: report["totals"]["searches"] for name, report in seen.items()} == {"ann": 1, "bob": 1, "root": 3}
    assert "own" not in str(seen["bob"]["by_tool"])


async def test_a_tool_that_a_caller_may_no_longer_see_is_not_named_to_it(path: Path) -> None:
    index = catalogue()
    await find(index, path, ANN)
    index.set_status_and_groups("own", status="running", groups=frozenset({"other"}))
    (own,) = [record for record in index.servers() if record.server_id == "own"]
    index.put_server(own.model_copy(update={"groups": frozenset({"other"}), "revision": 3}))

    report = await call_json(index, path, ANN, "get_savings_report")

    assert [row["name"] for row in report["by_tool"]] == ["(others)"]
    assert {row["name"] for row in report["by_server"]} == {"both", "(others)"}


async def test_a_caller_with_a_toolset_is_told_of_no_tool_outside_it(path: Path) -> None:
    index = catalogue()
    chosen = Caller("chosen", toolset="dev", selection=Selection(servers=frozenset({"both"})))
    for caller in (ROOT, Caller("chosen"), chosen):
        await find(index, path, caller)

    report = await call_json(index, path, chosen, "get_savings_report")

    assert report["totals"]["searches"] == 2
    assert {row["name"] for row in report["by_tool"]} == {"both:both_time", "(others)"}


async def test_what_a_catalogue_costs_is_reported_by_day_for_the_servers_of_the_caller(path: Path) -> None:
    index = catalogue()
    with closing(SqliteHistory(path, keep_days=2)) as history:
        CatalogueSampler(Ledger(index), history, "cl100k_base").sample()

    bob, ann, root = [await call_json(index, path, caller, "get_savings_report") for caller in (BOB, ANN, ROOT)]

    day = today().isoformat()
    assert bob["catalogue"] == [{"day": day, "servers": 1, "tools": 1, "tokens": 700}]
    assert ann["catalogue"] == root["catalogue"] == [{"day": day, "servers": 2, "tools": 2, "tokens": 1_400}]


async def test_a_server_that_a_toolset_shows_in_part_is_no_part_of_what_its_caller_is_told(path: Path) -> None:
    index = catalogue()
    with closing(SqliteHistory(path, keep_days=2)) as history:
        CatalogueSampler(Ledger(index), history, "cl100k_base").sample()
    selection = Selection(servers=frozenset({"both"}), tools=frozenset({"own:own_time"}))

    report = await call_json(index, path, Caller("dev", toolset="dev", selection=selection), "get_savings_report")

    assert [day["tokens"] for day in report["catalogue"]] == [700]


async def test_what_is_described_counts_as_returned_and_is_no_search(path: Path) -> None:
    index = catalogue()
    await call_json(index, path, ROOT, "describe_tool", names="both:both_time")

    report = await call_json(index, path, ROOT, "get_savings_report")

    assert report["totals"]["searches"] == 0
    assert report["totals"]["returned_tokens"] == 1_000
    assert report["net"]["if_each_search_is_a_session"] == -1_000


async def test_a_period_that_is_none_is_refused_with_what_was_expected(path: Path) -> None:
    async with client_of(catalogue(), path, ROOT) as client:
        result = await client.call_tool("get_savings_report", {"period": "a while"})

    assert result.is_error
    assert "period: expected today, 1d to 400d or a date" in result.content[0].text  # type: ignore[union-attr]


async def test_the_tool_costs_an_agent_few_tokens() -> None:
    await anyio.lowlevel.checkpoint()

    assert counter("cl100k_base")(GET_SAVINGS_REPORT.model_dump_json(by_alias=True, exclude_none=True)) < 200
