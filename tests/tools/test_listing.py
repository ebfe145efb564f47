"""list_available_tools: the cost of its pages, what they fall back to, and servers that offer the same tools."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from query.answers.budget import ResponsePolicy
from query.catalogue import Catalogue
from query.find import FURTHER_LOST
from query.kept import RECENT_S, Kept
from query.records import Ledger
from query.tools.list_available_tools import NAMES_ONLY, KeptNames, ListRequest, list_tools
from shared.catalog import Scope, ToolPage
from shared.text.tokens import counter, json_text
from tests.support.fakes import FakeEmbedder, FakeIndex, embedded, make_tool
from tests.support.filled import index_of, record_of
from tests.support.replicated import put_server, tool
from tests.support.silent_entries import SilentEntries

MOST_TOKENS_OF_A_NAME = 5
VERBS = (
    "get", "list", "create", "update", "delete", "search", "copy", "move", "export", "import", "rename", "merge",
    "publish", "validate", "read_recent",
)  # fmt: skip
NOUNS = ("file", "commit", "table", "slide", "hash_field", "web_page", "calendar_event", "issue", "chart", "message")


def catalogue(description: str = "...") -> Catalogue:
    """Return ten servers of fifteen tools each, with names as real servers declare them."""
    tools = [
        make_tool(f"{noun.replace('_', '-')}-server", f"{verb}_{noun}", description, 187, model_tokens=141)
        for noun, verb in product(NOUNS, VERBS)
    ]
    index = index_of(*tools)
    return Catalogue(index, FakeEmbedder(), Ledger(index))


def names(page: dict[str, Any]) -> set[str]:
    return {name for server in page["toolsByServer"] for name in server["names"].split()}


def test_a_list_of_names_costs_at_most_five_tokens_a_tool() -> None:
    page = list_tools(ListRequest(), Scope(), catalogue(), "ann")

    expected = {f"{verb}_{noun}" for verb, noun in product(VERBS, NOUNS)}
    assert names(page) == expected
    assert page["meta"]["context"]["tokens"] == 141 * len(expected)
    assert counter("cl100k_base")(json_text(page)) <= MOST_TOKENS_OF_A_NAME * len(expected)


def test_a_description_that_does_not_fit_leaves_names_and_a_warning() -> None:
    request = ListRequest(detail="full", max_tokens=400)

    page = list_tools(request, Scope(), catalogue("very long " * 1_000), "ann")

    assert names(page)
    assert page["warnings"] == [NAMES_ONLY]
    assert counter("cl100k_base")(json_text(page)) <= 400


def test_a_page_whose_cursor_cannot_be_stored_says_so_within_its_budget() -> None:
    entries = SilentEntries()
    known = replace(catalogue(), response_policy=ResponsePolicy(Kept(entries)))

    page = list_tools(ListRequest(max_tokens=300), Scope(), known, "ann")

    assert 0 < len(names(page)) < 150
    assert (page.get("nextCursor"), page["warnings"]) == (None, [FURTHER_LOST])
    assert counter("cl100k_base")(json_text(page)) <= 300
    entries.is_down = False
    assert list_tools(ListRequest(max_tokens=300), Scope(), known, "ann")["nextCursor"]


class Repeated:
    """A catalogue of one server, and the lists of names that one caller gets."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.index = FakeIndex()
        self._catalogue = Catalogue(self.index, FakeEmbedder(), Ledger(self.index))
        self._read = KeptNames(lambda: self.now_s)

    def write(self, tool: str, revision: int) -> None:
        """Write a tool, and then the server's record."""
        self.index.upsert([embedded(make_tool("files", tool))])
        self.index.put_server(record_of("files", revision=revision))

    def names(self) -> set[str]:
        return names(list_tools(ListRequest(), Scope(), self._catalogue, "ann", self._read))


def test_names_are_read_again_when_the_record_of_their_server_changes() -> None:
    kept = Repeated()
    kept.write("one", revision=1)
    assert kept.names() == {"one"}

    kept.write("two", revision=2)

    assert kept.names() == {"one", "two"}


def test_names_that_were_written_after_the_record_follow_within_a_minute() -> None:
    kept = Repeated()
    kept.write("one", revision=1)
    assert kept.names() == {"one"}

    kept.index.upsert([embedded(make_tool("files", "late"))])
    assert kept.names() == {"one"}
    kept.now_s += RECENT_S

    assert kept.names() == {"one", "late"}


# --- replicas ---

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


def test_one_requested_replica_is_a_server_like_any_other(index: FakeIndex) -> None:
    (entry,) = listing(index, servers=["web3"], detail="summary")["toolsByServer"]

    assert "servedBy" not in entry
    assert {tool["namespacedName"] for tool in entry["tools"]} == {"web3:echo", "web3:get-sum"}
    assert entry["context"] == {"tokens": 50, "percentTotal": 1.0}


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
