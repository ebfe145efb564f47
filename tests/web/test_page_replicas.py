"""The page where many servers offer the same tools."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import httpx2
import pytest

from query.caller import Caller
from query.catalogue import Catalogue
from query.records import Ledger
from query.servers import servers_for
from query.toolsets.offers import with_toolset
from shared.catalog import Endpoint, ServerRecord
from shared.toolset import Toolset
from tests.support.fakes import FakeEmbedder, FakeIndex
from tests.support.pages import get, text
from tests.support.replicated import put_server, tool

pytestmark = pytest.mark.anyio

WEB = (tool("get-sum", "adds two numbers", 30), tool("echo", "repeats a text", 20))


@pytest.fixture
def index() -> FakeIndex:
    """Return an index of one other server, and of five replicas: three run, one is stale, and one is stopped."""
    index = FakeIndex()
    put_server(index, "files", [tool("read", "reads a file", 40)], "files")
    for number in range(3):
        put_server(index, f"web{number}", WEB)
    put_server(index, "web3", WEB, stale_since=2.0, last_error="connection refused")
    put_server(index, "web4", WEB, status="stopped")
    index.put_server(ServerRecord(server_id="web5", endpoint=Endpoint(), revision=1))
    return index


class Rows(HTMLParser):
    """The text of each row of a table, with its folded part."""

    def __init__(self, page: httpx2.Response) -> None:
        super().__init__()
        self.rows: list[str] = []
        self.feed(page.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        if tag == "tr":
            self.rows.append("")

    def handle_data(self, data: str) -> None:
        if self.rows:
            self.rows[-1] = " ".join(f"{self.rows[-1]} {data}".split())


async def test_replicas_are_one_row_that_opens_with_the_state_of_each(index: FakeIndex) -> None:
    page = await get(index, "/ui/servers")

    _, web, files, new = Rows(page).rows
    assert web.startswith("web0 × 5 web0 listed web1 listed web2 listed web3 stale connection refused web4 stopped")
    assert re.search(r"3 listed 1 stale 1 stopped \S+ days ago 2 200 83\.3 %", web)
    assert files.startswith("files listed")
    assert new.startswith("web5 waiting never")
    assert page.text.count("<details") == page.text.count("<summary>") == 1
    assert all(f'href="/ui/servers/web{number}"' in page.text for number in range(6))


async def test_totals_are_beside_those_without_replicas(index: FakeIndex) -> None:
    overview, servers = text(await get(index, "/ui")), text(await get(index, "/ui/servers"))

    assert "Tools 9 3 without replicas" in overview
    assert "240 tokens; 90 without replicas" in overview
    assert "web0 × 5" in overview
    assert "9 tools, 240 tokens (cl100k_base, generic profile); 3 tools, 90 tokens without replicas." in servers
    alone = FakeIndex()
    put_server(alone, "files", [tool("read", "reads a file", 40)], "files")
    assert "without replicas" not in text(await get(alone, "/ui")) + text(await get(alone, "/ui/servers"))


async def test_a_server_links_to_its_replicas(index: FakeIndex) -> None:
    web, files = await get(index, "/ui/servers/web3"), await get(index, "/ui/servers/files")

    assert "5 servers have the same tools, by their last listings. web0 listed" in text(web)
    assert 'href="/ui/servers/web4"' in web.text
    assert "Replicas" not in text(files)


async def test_a_long_replica_set_is_cut_and_its_number_shown() -> None:
    index = FakeIndex()
    for number in range(130):
        put_server(index, f"web{number:03}", WEB)

    page = await get(index, "/ui/servers")

    assert "web000 × 130" in text(page)
    assert "web099 listed and 30 more" in text(page)


@pytest.mark.parametrize("sort", ["tokens", "name", "freshness"])
async def test_replica_sets_are_sorted_by_their_sum_their_first_server_and_their_oldest_listing(
    index: FakeIndex, sort: str
) -> None:
    put_server(index, "web0", WEB, last_listed_at=5.0, revision=2)
    put_server(index, "files", [], "files", last_listed_at=3.0, revision=2)

    rows = [row.split()[0] for row in Rows(await get(index, f"/ui/servers?sort={sort}")).rows[1:]]

    assert (
        rows
        == {
            "tokens": ["web0", "files", "web5"],
            "name": ["files", "web0", "web5"],
            "freshness": ["web5", "web0", "files"],
        }[sort]
    )


def test_a_toolset_with_one_tool_of_a_replica_shows_that_server_by_itself(index: FakeIndex) -> None:
    caller = with_toolset(Caller("ann"), Toolset(name="dev", tools=("web0", "web1", "web2:echo")))

    table = servers_for(caller.scope, Catalogue(index, FakeEmbedder(), Ledger(index)))

    assert [[row.record.server_id for row in of_set.rows] for of_set in table.sets] == [["web0", "web1"], ["web2"]]
    assert (table.tokens, table.distinct_tokens) == (50 + 50 + 20, 50 + 20)
