"""What the pages of `list_available_tools` cost, and what they fall back to."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from query.answers.budget import ResponsePolicy
from query.catalogue import Catalogue
from query.find import FURTHER_LOST
from query.kept import RECENT_S, Kept
from query.records import Ledger
from query.tools.list_available_tools import NAMES_ONLY, KeptNames, ListRequest, list_tools
from shared.catalog import FEATURES_VERSION, Encoding, Endpoint, Scope, ServerRecord
from shared.text.tokens import counter, json_text
from tests.support.fakes import FakeEmbedder, FakeIndex, embedded, make_tool
from tests.support.silent_entries import SilentEntries

MOST_TOKENS_OF_A_NAME = 5
VERBS = (
    "get", "list", "create", "update", "delete", "search", "copy", "move", "export", "import", "rename", "merge",
    "publish", "validate", "read_recent",
)  # fmt: skip
NOUNS = ("file", "commit", "table", "slide", "hash_field", "web_page", "calendar_event", "issue", "chart", "message")


def catalogue(description: str = "...") -> Catalogue:
    """Return ten servers of fifteen tools each, with names as real servers declare them."""
    index = FakeIndex()
    for revision, noun in enumerate(NOUNS, 1):
        server = f"{noun.replace('_', '-')}-server"
        tools = [make_tool(server, f"{verb}_{noun}", description, 187, model_tokens=141) for verb in VERBS]
        index.upsert([embedded(tool) for tool in tools])
        sums: dict[Encoding, int] = {"cl100k_base": sum(tool.model_counts["cl100k_base"] for tool in tools)}
        index.put_server(
            ServerRecord(
                server_id=server, endpoint=Endpoint(), features_version=FEATURES_VERSION, last_listed_at=1.0,
                tool_count=len(tools), model_tokens=sums, revision=revision,
            )
        )  # fmt: skip
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
        self.index.put_server(
            ServerRecord(server_id="files", endpoint=Endpoint(), last_listed_at=1.0, revision=revision)
        )

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
