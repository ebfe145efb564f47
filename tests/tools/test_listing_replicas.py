"""list_available_tools where many servers offer the same tools."""

from __future__ import annotations

from typing import Any

import pytest

from query.catalogue import Catalogue
from query.records import Ledger
from query.tools.list_available_tools import ListRequest, list_tools
from shared.catalog import Scope, ToolPage
from shared.text.tokens import counter, json_text
from tests.support.fakes import FakeEmbedder, FakeIndex
from tests.support.replicated import put_server, tool

SUM, ECHO = tool("get-sum", "adds two numbers", 30), tool("echo", "repeats a text", 20)


class CountingIndex(FakeIndex):
    """Counts the tools that it returns."""

    tools_read = 0

    def tools(self, scope: Scope, *, limit: int, after: str | None = None) -> ToolPage:
        page = super().tools(scope, limit=limit, after=after)
        self.tools_read += len(page.tools)
        return page


@pytest.fixture
def index() -> CountingIndex:
    """Return an index of one other server, and eleven replicas."""
    index = CountingIndex()
    put_server(index, "files", [tool("read", "reads a file", 40)], "files")
    for number in range(11):
        put_server(index, f"web{number}", [SUM, ECHO])
    return index


def listing(index: FakeIndex, scope: Scope | None = None, **request: Any) -> dict[str, Any]:
    catalogue = Catalogue(index, FakeEmbedder(), Ledger(index))
    return list_tools(ListRequest(**request), scope or Scope(), catalogue, "ann")


def tools_of(page: dict[str, Any], server: str) -> list[dict[str, Any]]:
    (entry,) = (entry for entry in page["toolsByServer"] if entry["serverName"] == server)
    tools: list[dict[str, Any]] = entry["tools"]
    return tools


def test_names_of_replicas_are_listed_once_with_their_servers_and_the_cost_of_all(index: FakeIndex) -> None:
    files, web = listing(index)["toolsByServer"]

    assert files == {"serverName": "files", "context": {"tokens": 40, "percentTotal": 0.0678}, "names": "read"}
    assert sorted(web.pop("names").split()) == ["echo", "get-sum"]
    assert web == {
        "serverName": "web0",
        "servedBy": {"count": 11, "servers": ["web0", "web1", "web10"]},
        "context": {"tokens": 550, "percentTotal": 0.9322},
    }


def test_a_tool_has_the_name_for_calls_and_the_cost_of_all_its_replicas(index: FakeIndex) -> None:
    page = listing(index, detail="summary")

    tools = sorted(tools_of(page, "web0"), key=lambda tool: tool["name"])
    assert [(tool["namespacedName"], tool["serverName"], tool["name"]) for tool in tools] == [
        ("echo", "web0", "echo"),
        ("get-sum", "web0", "get-sum"),
    ]
    assert [tool["context"]["tokens"] for tool in tools] == [11 * 20, 11 * 30]
    assert tools_of(page, "files")[0]["namespacedName"] == "files:read"


def test_an_ambiguous_name_comes_with_the_digest_of_the_definition(index: FakeIndex) -> None:
    put_server(index, "ledger", [tool("get-sum", "sums an account")], "ledger")
    digest = index.points()["web0:get-sum"].tool.digest

    page = listing(index, detail="summary")

    names = {tool["namespacedName"] for server in ("web0", "ledger") for tool in tools_of(page, server)}
    assert names == {f"get-sum@{digest[:8]}", "echo", "ledger:get-sum"}


def test_one_requested_replica_is_a_server_like_any_other(index: FakeIndex) -> None:
    (entry,) = listing(index, servers=["web3"], detail="summary")["toolsByServer"]

    assert "servedBy" not in entry
    assert {tool["namespacedName"] for tool in entry["tools"]} == {"web3:echo", "web3:get-sum"}
    assert entry["context"] == {"tokens": 50, "percentTotal": 1.0}


def test_servers_without_tools_and_with_different_names_are_no_replicas() -> None:
    index = FakeIndex()
    put_server(index, "a", [], "one")
    put_server(index, "b", [], "other")

    ledger = Ledger(index)
    ledger.baseline(Scope(), "cl100k_base")

    assert not ledger.replica_sets(Scope()).by_server


def test_a_thousand_replicas_cost_as_many_reads_and_hardly_more_tokens_than_one() -> None:
    index, alone = CountingIndex(), FakeIndex()
    tools = [tool(f"tool_{number}") for number in range(20)]
    for number in range(1_000):
        put_server(index, f"web{number}", tools)
    put_server(alone, "web0", tools)

    page, of_one = listing(index), listing(alone)

    count = counter("cl100k_base")
    assert index.tools_read == 20
    assert count(json_text(page)) <= count(json_text(of_one)) + 30
