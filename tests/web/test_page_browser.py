"""The page in a real Chromium, over real servers: nothing is blocked, all works without scripts, and on a phone."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client

from shared.catalog import REPLICA_SET
from tests.support.browser import Browser
from tests.support.hostile.processes import good_stdio
from tests.support.http_callers import entry, token_file
from tests.support.processes import query_service
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.browser]

PHONE, DESK = 360, 1200
PAGES = (
    "/ui",
    "/ui/tools",
    "/ui/tools?unused=1",
    "/ui/leave-out?tool=good%3Atool_000",
    "/ui/servers",
    "/ui/servers/good",
    "/ui/servers/hostile",
    "/ui/find?q=alert",
    "/ui/find?q=look+up+a+record",
    "/ui/tools/good%3Atool_000",
    "/ui/advice",
    "/ui/history",
    "/ui/servers/nothing",
)
MENU = ("Overview", "Tools", "Servers", "Find", "Advice", "History")
CHARTS = ("What all tools cost a context", "Net tokens saved")
MARKUP_SERVER = Path(__file__).parents[1] / "support" / "hostile" / "markup_server.py"


@pytest.fixture(scope="module")
def service(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """Yield the address of a service over three real servers, which was asked once."""
    directory = tmp_path_factory.mktemp("service")
    replica = {"command": good_stdio().command, "args": list(good_stdio().args), "labels": {REPLICA_SET: "good"}}
    servers = {
        "good": replica,
        "quarterly-reports": replica,
        "hostile": {"command": sys.executable, "args": [str(MARKUP_SERVER), "stdio"]},
    }
    config = directory / "mcp.json"
    config.write_text(json.dumps({"mcpServers": servers}))
    with serving(directory, "--config", str(config), indexed=len(servers)) as address:
        anyio.run(ask, address)
        eventually(lambda: history(address).count('role="img"') > len(CHARTS), what="both charts, and the costs")
        yield address


@contextmanager
def serving(directory: Path, *arguments: str, indexed: int = 0, **settings: str) -> Generator[str]:
    """Run `toolscale serve` until the block ends; yield its address once it has indexed so many servers."""
    with query_service(directory, "-m", "toolscale", "serve", *arguments, **settings) as (running, address):
        running.wait_for("server_indexed", times=indexed)
        yield address


def history(address: str) -> str:
    return httpx2.get(f"{address}/ui/history", trust_env=False).text


async def ask(address: str) -> None:
    async with Client(f"{address}/mcp") as client:
        await client.call_tool("find_tool", {"tool_description": "look up a record"})


def roles(tree: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the names of what a screen reader is told of, by role."""
    told: dict[str, list[str]] = {}
    for node in tree:
        if not node.get("ignored"):
            told.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    return told


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("path", PAGES)
def test_a_page_loads_without_a_complaint_and_without_scrolling_sideways(
    chromium: Browser, service: str, path: str, width: int, dark: bool
) -> None:
    tab = chromium.tab(width, dark=dark)

    tab.open(service + path)

    assert [problem for problem in tab.problems if "404" not in problem] == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate("document.querySelector('h1') !== null")
    assert tab.evaluate("document.querySelectorAll('body script, iframe, [onerror], [style], style').length") == 0
    loaded = tab.evaluate("performance.getEntriesByType('resource').map(each => new URL(each.name).origin)")
    assert set(loaded) == {service}
    paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", paper))) < 128) == dark


def test_the_smallest_screen_has_room_for_the_names_of_servers(chromium: Browser, service: str) -> None:
    tab = chromium.tab(320)  # that of WCAG 2.2, 1.4.10

    tab.open(f"{service}/ui/servers")

    assert tab.evaluate("document.documentElement.scrollWidth") <= 320
    assert tab.evaluate("document.querySelector('tbody th').getBoundingClientRect().width") >= 100


def test_a_search_works_without_scripts(chromium: Browser, service: str) -> None:
    tab = chromium.tab(PHONE, scripts=False)
    tab.open(f"{service}/ui")

    tab.evaluate("document.getElementById('q').focus()")
    tab.type("look up a record")

    text = tab.evaluate("document.querySelector('main').innerText")
    assert tab.evaluate("location.pathname") == "/ui/find"
    assert re.search(r"tool_\d{3} of good and 1 other server\s+\d+ tokens", text), text
    assert tab.problems == []


def test_a_click_selects_a_whole_command_to_copy(chromium: Browser, service: str) -> None:
    tab = chromium.tab(scripts=False)
    tab.open(f"{service}/ui")

    tab.evaluate("document.querySelector('details.fold').open = true")
    tab.click("pre.copy")

    assert tab.evaluate("getSelection().toString()") == f"claude mcp add --transport http toolscale {service}/mcp"


def test_a_server_of_the_file_shows_its_command_and_the_latest_next_reconciliation(
    chromium: Browser, service: str
) -> None:
    tab = chromium.tab(scripts=False)
    tab.open(f"{service}/ui/servers/hostile")

    facts = " ".join(tab.evaluate("document.querySelector('.facts').innerText").split())

    assert re.search(r"Next reconciliation in \d+ min at the latest, by the resync interval", facts), facts
    assert re.search(r"Command \S*python\S* \S*markup_server.py stdio$", facts), facts


def test_a_replica_set_opens_from_the_keyboard_without_scripts(chromium: Browser, service: str) -> None:
    tab = chromium.tab(PHONE, scripts=False)
    tab.open(f"{service}/ui/servers")
    text = "document.querySelector('details.set').innerText"
    closed = tab.evaluate(text)

    tab.evaluate("document.querySelector('details.set summary').focus()")
    tab.press_enter()

    assert closed.split() == ["good", "×", "2"]
    assert tab.evaluate(text).split() == [*closed.split(), "good", "listed", "quarterly-reports", "listed"]
    assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE
    assert tab.problems == []


def test_a_script_that_found_its_way_into_a_page_would_not_run(chromium: Browser, service: str) -> None:
    tab = chromium.tab()
    tab.open(f"{service}/ui")

    script = "Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'})"
    tab.evaluate(f"document.head.append({script})")

    assert tab.evaluate("window.ran") is None
    assert any("Content Security Policy" in problem for problem in tab.problems)


def test_the_keyboard_leads_past_the_menu_to_the_content(chromium: Browser, service: str) -> None:
    tab = chromium.tab(scripts=False)
    tab.open(f"{service}/ui/servers")

    assert tab.press_tab() == "Skip to the content"
    assert [tab.press_tab() for _ in ("Toolscale", *MENU)] == ["Toolscale", *MENU]


def test_a_screen_reader_is_told_of_landmarks_and_of_what_charts_show(chromium: Browser, service: str) -> None:
    tab = chromium.tab()
    tab.open(f"{service}/ui/history")

    told = roles(tab.call("Accessibility.getFullAXTree")["nodes"])

    assert {"banner", "navigation", "main", "contentinfo", "heading"} <= told.keys()
    # the brand's picture is decoration, each chart says what it shows
    titles = [name.split(":")[0] for name in told["image"]]
    assert set(CHARTS) < set(titles)
    assert len(titles) == len(CHARTS) + 1


def test_a_screen_reader_is_told_of_each_box_of_the_map(chromium: Browser, service: str) -> None:
    tab = chromium.tab()
    tab.open(f"{service}/ui")

    told = roles(tab.call("Accessibility.getFullAXTree")["nodes"])

    assert told["searchbox"] == ["What should the tool do?"]
    box = re.compile(r"(?s).+:.+, [\d,]+ tokens, (never called|\S+ calls?) in 30 days")
    boxes = [name for name in told["link"] if box.fullmatch(name)]
    assert len(boxes) == tab.evaluate("document.querySelectorAll('a.tile').length")


@pytest.mark.slow
def test_a_browser_signs_in_with_a_token_as_the_password(chromium: Browser, tmp_path: Path) -> None:
    tokens = token_file(tmp_path / "tokens.toml", ann=entry("good-token", ["team"]))
    with serving(tmp_path, TOOLSCALE_TOKENS_FILE=str(tokens)) as address:
        tab = chromium.tab()
        refused = tab.call("Page.navigate", {"url": f"{address}/ui"})  # nobody answers the browser's question
        tab.open(address.replace("//", "//ann:good-token@") + "/ui")
        tab.open(f"{address}/ui/servers")  # the browser remembers

        assert refused["errorText"] == "net::ERR_INVALID_AUTH_CREDENTIALS"
        # the refused page may end its load later than the next one begins
        footer = "document.querySelector('footer')?.innerText ?? ''"
        eventually(lambda: "seen as ann, groups team" in tab.evaluate(footer), what="the page of ann")
