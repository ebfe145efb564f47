"""The map of the context on the overview: its figures add up, it is bounded, and it shows the caller's scope alone."""

from __future__ import annotations

import re
from pathlib import Path

import httpx2
import pytest

from query.caller import ANYONE, Caller
from query.catalogue import Catalogue
from query.records import Ledger
from query.web.context_map import PARTS, READ_TOOLS, SERVERS, STRIP, TOOLS, Tile, context_map
from query.web.page import PageRequest
from query.web.servers import servers_for
from shared.toolset import Toolset
from tests.support.fakes import FakeEmbedder, FakeIndex
from tests.support.http_callers import app_of, entry, http_client, static
from tests.support.replicated import put_server, tool

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def tiles_of(index: FakeIndex, caller: Caller = ANYONE) -> list[Tile]:
    catalogue = Catalogue(index, FakeEmbedder(), Ledger(index))
    return context_map(PageRequest(caller, catalogue, {}, {}), servers_for(caller, catalogue))


def area(tile: Tile) -> float:
    return tile.rect.width * tile.rect.height


async def overview(index: FakeIndex) -> httpx2.Response:
    async with http_client(app_of(index)) as http:
        return await http.get("/ui")


def test_the_tiles_of_each_level_add_up_and_their_areas_are_in_proportion() -> None:
    index = FakeIndex()
    put_server(index, "files", [tool(f"tool{number}", "Do it", 100 * number) for number in range(1, 8)], "files")
    put_server(index, "clock", [tool("get_time", "Tell the time", 50)], "clock")

    files, clock = tiles_of(index)

    assert (files.tokens, clock.tokens) == (2_800, 50)
    assert [(each.name, each.tokens) for each in files.inner] == [
        *[("tool7", 700), ("tool6", 600), ("tool5", 500), ("tool4", 400)],
        ("", 600),
    ]
    assert [part.name for part in clock.inner[0].inner] == [PARTS[0], PARTS[2]]
    for within in ((files, clock), files.inner, clock.inner, clock.inner[0].inner):
        per_token = sum(map(area, within)) / sum(tile.tokens for tile in within)
        for tile in within:
            assert area(tile) == pytest.approx(per_token * tile.tokens)
            assert sum(inner.tokens for inner in tile.inner) in (0, tile.tokens)


def test_the_name_of_a_server_has_a_strip_of_its_own() -> None:
    index = FakeIndex()
    put_server(index, "files", [tool(f"tool{number}", "Do it", 100 * number) for number in range(1, 8)], "files")
    put_server(index, "s", [tool("tiny", "Do it", 2)], "s")

    files, tiny = tiles_of(index)

    assert {each.rect.y for each in files.inner} >= {STRIP}
    assert sum(map(area, files.inner)) == pytest.approx(area(files) - STRIP * files.rect.width)
    assert tiny.label == ""
    assert sum(map(area, tiny.inner)) == pytest.approx(area(tiny))


@pytest.mark.parametrize(("tokens", "labels"), [(20, ["a_long_…", "b_long_…"]), (18, ["", ""])])
def test_a_label_is_left_out_where_fewer_than_eight_characters_have_room(tokens: int, labels: list[str]) -> None:
    index = FakeIndex()
    largest = [tool(f"{each}_long_name", "Do it", tokens) for each in "abcd"]
    put_server(index, "files", [*largest, *(tool(f"other{number}", "Do it", 4) for number in range(246))], "files")

    (files,) = tiles_of(index)

    assert [each.label for each in files.inner[:2]] == labels
    assert files.inner[-1].label == "246 other tools, 984"


def test_other_tools_are_counted_alone_where_the_whole_label_does_not_fit() -> None:
    index = FakeIndex()
    put_server(index, "big", [tool(f"t{number}", "Do it", 100) for number in range(40)], "big")
    put_server(index, "files", [tool(f"t{number}", "Do it", 100) for number in range(7)], "files")

    big, files = tiles_of(index)

    assert (big.inner[-1].label, files.inner[-1].label) == ("36 other tools, 3,600", "3 others")


async def test_the_box_of_other_tools_is_labelled_on_the_page() -> None:
    index = FakeIndex()
    put_server(index, "files", [tool(f"t{number}", "Do it", 100) for number in range(9)], "files")

    assert ">5 other tools, 500</text>" in (await overview(index)).text


def test_a_replica_set_is_one_tile_with_the_tokens_of_all() -> None:
    index = FakeIndex()
    for number in range(3):
        put_server(index, f"web{number}", [tool("echo", "repeats a text", 40)])
    put_server(index, "web3", [tool("echo", "repeats a text", 40)], status="stopped")

    (web,) = tiles_of(index)

    assert (web.name, web.tokens, web.label) == ("web0", 120, "web0 × 3")
    assert [(each.name, each.tokens) for each in web.inner] == [("echo", 120)]


def test_the_number_of_tiles_does_not_grow_with_the_servers() -> None:
    index = FakeIndex()
    for number in range(200):
        put_server(index, f"s{number:03}", [tool(f"t{n}", "Do it", 10 + number) for n in range(6)], f"s{number}")

    tiles = tiles_of(index)

    assert len(tiles) == SERVERS + 1
    assert tiles[-1].name == ""
    assert sum(tile.tokens for tile in tiles) == sum(6 * (10 + number) for number in range(200))
    assert all(len(tile.inner) == TOOLS + 1 for tile in tiles[:-1])


def test_a_server_of_very_many_tools_is_not_divided() -> None:
    index = FakeIndex()
    put_server(index, "big", [tool(f"t{number}") for number in range(READ_TOOLS + 1)], "big")

    (big,) = tiles_of(index)

    assert (big.tokens, big.inner) == (10 * (READ_TOOLS + 1), [])


def test_a_changed_server_is_read_again() -> None:
    index = FakeIndex()
    catalogue = Catalogue(index, FakeEmbedder(), Ledger(index))
    request = PageRequest(ANYONE, catalogue, {}, {})
    put_server(index, "clock", [tool("get_time")], "clock")
    before = context_map(request, servers_for(ANYONE, catalogue))
    put_server(index, "clock", [tool("get_time"), tool("set_time")], "clock", revision=2)

    after = context_map(request, servers_for(ANYONE, catalogue))

    names = [[each.name for each in tiles[0].inner] for tiles in (before, after)]
    assert names == [["get_time"], ["get_time", "set_time"]]


async def test_the_map_is_of_links_with_their_figures_and_a_table() -> None:
    index = FakeIndex()
    put_server(index, "a/b", [tool("<b>x", "Do it", 100)], "a")

    page = await overview(index)

    figure = page.text.partition('<figure class="map"')[2].partition("</figure>")[0]
    assert re.findall(r'<a href="(.*?)"><title>', figure) == ["/ui/servers/a%2Fb", "/ui/tools/a%2Fb%3A%3Cb%3Ex"]
    assert "<title>&lt;b&gt;x of a/b: 100 tokens, " in figure
    assert 'role="img"' not in figure  # its links would be hidden from a screen reader
    assert "style=" not in figure
    table = " ".join(re.sub("<[^>]+>", " ", figure.partition("<table")[2]).split())
    assert re.search(r"a/b all 100 a/b &lt;b&gt;x 100 \d+ name and description, \d+ rest", table)


async def test_a_catalogue_without_tokens_has_no_map() -> None:
    assert '<figure class="map"' not in (await overview(FakeIndex())).text


async def test_the_map_is_of_the_callers_scope(tmp_path: Path) -> None:
    index = FakeIndex()
    put_server(index, "clock", [tool("get_time"), tool("set_time")], "clock", groups=frozenset({"team"}))
    put_server(index, "files", [tool("read_file")], "files", groups=frozenset({"other"}))
    index.put_toolset(Toolset(name="dev", tools=("clock:get_time",)))
    known = static(tmp_path / "t.toml", ann=entry("ann", groups=["team"]), dev=entry("dev", toolset="dev"))

    async with http_client(app_of(index, known)) as http:
        ann, dev = [
            (await http.get("/ui", headers={"authorization": f"Bearer {token}"})).text for token in ("ann", "dev")
        ]

    assert "set_time" in ann
    assert "files" not in ann + dev
    assert "get_time" in dev
    assert "set_time" not in dev
