"""Changes of definitions for people and for the command line: within the caller's scope, and never as markup."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from query.caller import Caller
from query.catalogue import Catalogue
from query.reports.changes import changed_servers_of_last_day
from query.savings.ledger import Ledger
from shared.catalog import DefinitionChange, Scope, ServerRecord
from shared.toolset import Selection, Toolset
from tests.support.fakes import FakeEmbedder, FakeIndex
from tests.support.http_callers import app_of, entry, http_client, static
from tests.unit.query.test_page import HOSTILE, Parsed, clock

pytestmark = pytest.mark.anyio

HOUR_S, DAY_S = 3_600.0, 86_400.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def meant(tool: str, age_s: float = 2 * HOUR_S, **more: Any) -> DefinitionChange:
    fields = {"before": "a" * 32, "after": "b" * 32, "parts": ("description",), "diff": "-old\n+new"} | more
    return DefinitionChange.model_validate({"tool": tool, "at": time.time() - age_s, **fields})


def cosmetic(tool: str, age_s: float = HOUR_S) -> DefinitionChange:
    return meant(tool, age_s, after="a" * 32, parts=("title",), diff="-Old\n+New")


@pytest.fixture
def index() -> FakeIndex:
    index = clock()
    index.put_changes("clock", (meant("get_time"), cosmetic("set_alarm", 3 * HOUR_S), meant("old", 40 * DAY_S)))
    index.put_changes("files", (DefinitionChange(tool="read_file", at=time.time() - HOUR_S, after="c" * 32),))
    index.put_changes("unknown", (meant("hidden"),))
    return index


async def page_of(index: FakeIndex, path: str = "/ui/changes") -> Parsed:
    async with http_client(app_of(index)) as http:
        response = await http.get(path)
    assert response.status_code == 200
    return Parsed(response)


def words(page: Parsed) -> str:
    return " ".join(page.text.split())


async def test_each_change_has_its_kind_in_words_its_parts_and_its_diff(index: FakeIndex) -> None:
    page = await page_of(index)
    text = words(page)

    assert "3 changes of tools" in text
    digests = f"Digest {'a' * 32} to {'b' * 32}"
    assert f"get_time meaning changed 2 h ago description The diff {digests} -old +new" in text
    assert "set_alarm cosmetic 3 h ago title The diff -Old +New" in text
    assert "read_file added 1 h ago" in text
    assert text.index("read_file") < text.index("get_time") < text.index("set_alarm")
    assert {"details", "pre"} <= page.elements
    assert "script" not in page.elements
    assert "hidden" not in text


async def test_a_tool_that_is_gone_keeps_a_page_with_its_changes(index: FakeIndex) -> None:
    index.put_changes("clock", (meant("gone", HOUR_S, after=None, parts=(), diff=""), meant("gone", 2 * HOUR_S)))

    changes, gone = await page_of(index), await page_of(index, "/ui/tools/clock:gone")

    assert "/ui/tools/clock%3Agone" in changes.links
    assert "Its server does not list this tool now. Changes gone removed 1 h ago gone meaning changed 2 h ago" in (
        words(gone)
    )
    async with http_client(app_of(index)) as http:
        assert (await http.get("/ui/tools/clock:never")).status_code == 404
        assert (await http.get("/ui/tools/unknown:hidden")).status_code == 404


async def test_each_line_of_a_diff_is_a_line_of_the_page(index: FakeIndex) -> None:
    async with http_client(app_of(index)) as http:
        text = (await http.get("/ui/changes")).text

    assert "\n<bdi>-old</bdi>\n<bdi>+new</bdi>\n" in text


async def test_the_overview_counts_the_changed_servers_of_a_day_and_reads_no_change(
    index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(FakeIndex, "changes")
    monkeypatch.delattr(FakeIndex, "recent_changes")

    assert "2 servers changed their tools in the last day" in words(await page_of(index, "/ui"))
    assert "changed their tools" not in words(await page_of(clock(), "/ui"))


async def test_a_tool_shows_its_own_changes(index: FakeIndex) -> None:
    tool = words(await page_of(index, "/ui/tools/clock:get_time"))
    assert "Changes get_time meaning changed 2 h ago" in tool
    assert "set_alarm" not in tool.split("Changes get_time")[1].split("Servers")[0]


@pytest.mark.parametrize(
    ("query", "count"), [("?days=90", 4), ("?days=90&kind=meaning", 3), ("?kind=meaning", 2), ("?days=x", 3)]
)
async def test_a_period_and_the_kind_are_selected_by_links(index: FakeIndex, query: str, count: int) -> None:
    page = await page_of(index, f"/ui/changes{query}")

    assert f"{count} changes of tools" in words(page)


async def test_a_catalogue_without_changes_has_a_page(index: FakeIndex) -> None:
    assert "No change in these days" in words(await page_of(clock()))


async def test_many_changes_are_on_several_pages(index: FakeIndex) -> None:
    index.put_changes("clock", [meant(f"tool_{number:03}", number) for number in range(100)])

    first, second = [words(await page_of(index, f"/ui/changes?page={page}")) for page in (1, 2)]

    assert "1 2 Next" in first
    assert "tool_099" in first
    assert "read_file" not in first
    assert "read_file" in second
    assert "tool_099" not in second


async def test_a_page_reads_the_known_servers_once(index: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Scope] = []
    known = Ledger.known

    def counted(ledger: Ledger, scope: Scope) -> list[ServerRecord]:
        reads.append(scope)
        return known(ledger, scope)

    monkeypatch.setattr(Ledger, "known", counted)
    page = words(await page_of(index))

    assert "read_file" in page
    assert "get_time" in page
    assert len(reads) == 1


async def test_no_text_of_a_server_becomes_markup(index: FakeIndex) -> None:
    index.put_changes("clock", (meant(HOSTILE, parts=(HOSTILE,), diff=f"-{HOSTILE}\n+{HOSTILE}"),))
    page = await page_of(index)

    assert "script" not in page.elements
    assert page.sources == {"/ui/static/icon.svg"}
    assert "onerror" not in page.attributes
    assert "\u202e" not in page.text
    assert "1337" not in page.text


async def test_callers_see_the_changes_of_their_groups_and_of_the_tools_of_their_toolset(
    index: FakeIndex, tmp_path: Path
) -> None:
    index.put_toolset(Toolset(name="alarms", tools=("clock:set_alarm",)))
    known = static(tmp_path / "t.toml", team=entry("team", groups=["team"]), alarm=entry("alarm", toolset="alarms"))
    async with http_client(app_of(index, known)) as http:
        texts = {
            name: [(await http.get(path, headers={"authorization": f"Bearer {name}"})).text for path in PATHS]
            for name in ("team", "alarm")
        }
        refused = await http.get("/ui/changes.json")
        other = await http.get("/ui/changes.json?server=files", headers={"authorization": "Bearer team"})

    for text in texts["team"]:
        assert "get_time" in text
        assert "read_file" not in text
    for text in texts["alarm"]:
        assert "set_alarm" in text
        assert "get_time" not in text
    assert (refused.status_code, other.status_code) == (401, 404)


PATHS = ("/ui/changes", "/ui/changes.json", "/ui/changes.json?server=clock")


async def test_the_route_returns_changes_after_a_time_and_the_diffs_of_one_server(index: FakeIndex) -> None:
    async with http_client(app_of(index)) as http:
        everything = (await http.get("/ui/changes.json")).json()["changes"]
        recent = (await http.get(f"/ui/changes.json?since={int(time.time() - 2.5 * HOUR_S)}")).json()["changes"]
        of_clock = (await http.get("/ui/changes.json?server=clock")).json()["changes"]
        unknown, invalid = await http.get("/ui/changes.json?server=clokc"), await http.get("/ui/changes.json?since=inf")

    assert [(each["server_id"], each["tool"], each["kind"], each["diff"]) for each in everything] == [
        ("files", "read_file", "added", ""),
        ("clock", "get_time", "meaning", ""),
        ("clock", "set_alarm", "cosmetic", ""),
        ("clock", "old", "meaning", ""),
    ]
    assert [each["tool"] for each in recent] == ["read_file", "get_time"]
    assert [each["diff"] for each in of_clock] == ["-old\n+new", "-Old\n+New", "-old\n+new"]
    assert (unknown.status_code, "did you mean clock?" in unknown.json()["error"]) == (404, True)
    assert (invalid.status_code, "since" in json.dumps(invalid.json())) == (400, True)


async def test_an_index_that_does_not_answer_is_an_error_of_the_route(index: FakeIndex) -> None:
    async with http_client(app_of(index)) as http:
        index.is_down = True
        response = await http.get("/ui/changes.json")

    assert response.status_code == 503


async def test_the_newest_changes_of_a_kind_come_with_a_note_that_more_exist(
    index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("query.reports.changes.MAX_SHOWN", 2)
    async with http_client(app_of(index)) as http:
        newest = (await http.get("/ui/changes.json")).json()
        of_meaning = (await http.get("/ui/changes.json?kind=meaning&since=0")).json()
        of_clock = (await http.get(f"/ui/changes.json?server=clock&since={int(time.time() - DAY_S)}")).json()

    assert ([each["tool"] for each in newest["changes"]], newest["more"]) == (["read_file", "get_time"], True)
    assert "cosmetic" not in {each["kind"] for each in of_meaning["changes"]}
    assert ([each["tool"] for each in of_clock["changes"]], of_clock["more"]) == (["get_time", "set_alarm"], False)


def test_the_servers_with_changes_in_the_last_day_are_counted_in_the_scope(index: FakeIndex) -> None:
    catalogue = Catalogue(index, FakeEmbedder(), Ledger(index))
    scopes = (
        Caller("all").scope,
        Caller("team", frozenset({"team"})).scope,
        Caller("alarm", selection=Selection(tools=frozenset({"clock:set_alarm"}))).scope,
    )

    assert [changed_servers_of_last_day(scope, catalogue) for scope in scopes] == [2, 1, 1]
    index.put_changes("clock", (meant("get_time"),))
    assert [changed_servers_of_last_day(scope, catalogue) for scope in scopes] == [2, 1, 0]
