from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import structlog
from mcp import Client

from query.caller import Caller
from query.catalogue import Catalogue, recorded
from query.mcp import service_of
from query.records import Ledger
from query.usage.record import sampling
from query.usage.store_sqlite import SqliteUsage
from query.usage.usage import today
from shared.catalog import Selection
from shared.text.tokens import counter, json_text
from tests.support.calling import text_of
from tests.support.fakes import FakeEmbedder, FakeIndex, make_tool
from tests.support.filled import index_of

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("noon")]

both_eras = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])

ANN = Caller("ann", frozenset({"team"}))
BOB = Caller("bob", frozenset({"other"}))
ROOT = Caller("root")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "savings.sqlite3"


def catalogue() -> FakeIndex:
    """Return two tools of 1,000 tokens each, 900 in the model form, of a team and of both teams."""
    groups = {"own": ["team"], "both": ["team", "other"]}
    return index_of(
        *(
            make_tool(server, f"{server}_time", "Tell the time", tokens=1_000, groups=own, model_tokens=900)
            for server, own in groups.items()
        )
    )


@asynccontextmanager
async def client_of(index: FakeIndex, path: Path, caller: Caller, mode: str = "auto") -> AsyncGenerator[Client]:
    """Yield a client of one process, whose events are written when the block ends."""
    made = Catalogue(index, FakeEmbedder(), Ledger(index), no_match_threshold=-1)
    with closing(SqliteUsage(path, keep_days=2)) as usage, recorded(made, usage) as held:
        async with Client(service_of(held, authenticate=lambda _: caller), mode=mode) as client:
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


async def listed(client: Client) -> int:
    """Return the tokens of our own tools, as a client lists them."""
    count, model = counter("cl100k_base"), ("name", "description", "inputSchema")
    tools = (await client.list_tools()).tools
    sent = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools]
    return sum(count(json_text({key: tool[key] for key in model})) for tool in sent)


@both_eras
async def test_a_report_leads_with_the_net_and_states_the_gross_of_the_answers(path: Path, mode: str) -> None:
    index = catalogue()
    async with client_of(index, path, ROOT, mode) as client:
        tokens = await listed(client)
        found = await client.call_tool("find_tool", {"tool_description": "own time", "limit": 1})

    report = await call_json(index, path, ROOT, "get_savings_report", mode)

    totals = report["totals"]
    answered = counter("cl100k_base")(text_of(found))
    assert report["profile"] == "generic"
    assert totals["tokens_saved"] == found.structured_content["token_metrics"]["tokens_saved"] == 1_000
    assert (totals["searches"], totals["found_nothing"], totals["contexts"]) == (1, 0, 1)
    assert (totals["baseline_tokens"], totals["answer_tokens"]) == (1_800, answered)
    # a client that parses a tool and writes it again may order its keys anew
    assert totals["listed_tokens"] == pytest.approx(tokens, rel=0.01)
    assert totals["net_tokens_saved"] == 1_800 - totals["listed_tokens"] - answered
    assert report["by_tool"] == [{"name": "own:own_time", "shown": 1}]
    assert [use["name"] for use in report["own_tools"]] == ["tools/list", "find_tool"]
    assert f"Below {report['break_even_tools']} tools" in report["advice"]


async def test_a_list_without_an_index_is_answered_and_claims_nothing(path: Path) -> None:
    index = catalogue()
    with structlog.testing.capture_logs() as lines:
        index.is_down = True
        async with client_of(index, path, ROOT) as client:
            assert (await client.list_tools()).tools
            assert (await client.call_tool("find_tool", {"tool_description": "time"})).is_error
    index.is_down = False

    totals = (await call_json(index, path, ROOT, "get_savings_report"))["totals"]

    assert (totals["contexts"], totals["baseline_tokens"], totals["searches"]) == (1, 0, 0)
    assert "savings_baseline_missing" in [line["event"] for line in lines]


async def test_a_tool_that_a_caller_may_no_longer_see_is_not_named_to_it(path: Path) -> None:
    index = catalogue()
    await find(index, path, ANN)
    index.set_status_and_groups("own", status="running", groups=frozenset({"other"}))
    (own,) = [record for record in index.servers() if record.server_id == "own"]
    index.put_server(own.model_copy(update={"groups": frozenset({"other"}), "revision": 3}))

    report = await call_json(index, path, ANN, "get_savings_report")

    assert [row["name"] for row in report["by_tool"]] == ["(others)"]
    assert [row["name"] for row in report["by_server"]] == ["(others)"]


async def test_a_caller_with_a_toolset_is_told_of_no_tool_outside_it(path: Path) -> None:
    index = catalogue()
    chosen = Caller("chosen", toolset="dev", selection=Selection(servers=frozenset({"both"})))
    for caller in (ROOT, Caller("chosen"), chosen):
        await find(index, path, caller)

    report = await call_json(index, path, chosen, "get_savings_report")

    assert report["totals"]["searches"] == 2
    assert {row["name"] for row in report["by_tool"]} == {"both:both_time", "(others)"}


async def test_the_catalogues_size_is_reported_by_day_to_callers_that_see_all_of_it(path: Path) -> None:
    index = catalogue()
    with closing(SqliteUsage(path, keep_days=2)) as usage, sampling(usage, Ledger(index), "cl100k_base"):
        pass
    selection = Selection(servers=frozenset({"both"}), tools=frozenset({"own:own_time"}))
    dev = Caller("dev", toolset="dev", selection=selection)

    ann, in_toolset, root = [await call_json(index, path, caller, "get_savings_report") for caller in (ANN, dev, ROOT)]

    assert "catalogue" not in ann.keys() | in_toolset.keys()
    assert root["catalogue"] == [{"day": today().isoformat(), "servers": 2, "tools": 2, "tokens": 1_800}]


async def test_a_period_that_is_none_is_refused_with_what_was_expected(path: Path) -> None:
    async with client_of(catalogue(), path, ROOT) as client:
        result = await client.call_tool("get_savings_report", {"period": "a while"})

    assert result.is_error
    assert "period: expected today, 1d to 400d or a date" in result.content[0].text  # type: ignore[union-attr]
