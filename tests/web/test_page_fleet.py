"""The page of fleets of 11, 500 and 5,000 servers in a real Chromium: accessible, and filtered without scripts."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from benchmarks.generated import server_id
from benchmarks.page import PAGES, TOOL, Plan, serving
from shared.errors import Permanent, Retryable
from tests.support.browser import Browser, Tab
from toolscale.demo.servers import NodeEnvironment

pytestmark = [pytest.mark.process, pytest.mark.browser]

PACKAGE = Path(__file__).parents[1] / "support" / "axe"
AXE = NodeEnvironment("axe", PACKAGE / "package.json", PACKAGE / "package-lock.json")
# the style sheet is read from the document: the policy forbids the request by which axe reads it again
RUN = """axe.run({preload: false, resultTypes: ['violations']}).then(
  found => found.violations.map(each => each.id + ': ' + each.nodes.map(node => node.html).slice(0, 3).join(' ')))"""
# what a reader can open is checked too
OPEN = "document.querySelectorAll('details').forEach(each => { each.open = true; })"
# the feed is a part of a page
OWN = [path for name, path in PAGES.items() if name != "feed"]
PATHS = (
    *OWN,
    f"/ui/leave-out?tool={server_id(1)}:{TOOL}",
    "/ui/tools?unused=1",
    "/ui/find?q=send+a+message",
    "/ui/advice?toolset=none",
    "/ui/servers/nothing",
)
PHONE, DESK = 390, 1100


LARGE = [pytest.param(servers, marks=pytest.mark.slow) for servers in (500, 5_000)]


@pytest.fixture(scope="module", params=[11, *LARGE])
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[int, str]]:
    """Yield the number of servers and the address of a service over them, with a history."""
    servers = int(request.param)
    plan = Plan(name="test", servers=(servers,), tools_per_server=2, days=2, callers=3, loads=1)
    with serving(tmp_path_factory.mktemp("fleet"), servers, plan) as service:
        yield servers, service.url


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("node")
    try:
        AXE.install(directory)
    except (Permanent, Retryable) as error:
        pytest.skip(f"axe-core is not installed: {error}")
    return (directory / "axe" / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.node
@pytest.mark.index
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_no_violation_on_any_page(chromium: Browser, fleet: tuple[int, str], axe: str, dark: bool) -> None:
    violations: dict[str, list[str]] = {}
    for width in (PHONE, DESK):
        tab = chromium.tab(width, dark=dark)
        for path in PATHS:
            tab.open(fleet[1] + path)
            tab.evaluate(OPEN)
            tab.evaluate(axe)
            violations |= {f"{path} at {width}": found} if (found := tab.evaluate(RUN)) else {}
            assert tab.evaluate("document.documentElement.scrollWidth") <= width, path
        assert [problem for problem in tab.problems if "404" not in problem] == []

    assert violations == {}


def rows(tab: Tab) -> list[str]:
    """Return the names in the table."""
    return list(tab.evaluate("[...document.querySelectorAll('table.servers tbody th')].map(each => each.innerText)"))


def follow(tab: Tab, link: str) -> dict[str, list[str]]:
    """Follow the link at a CSS selector, and return the parameters of the page after it."""
    tab.open(tab.evaluate(f"document.querySelector({link!r}).href"))
    return parse_qs(urlsplit(str(tab.evaluate("location.href"))).query)


def test_filters_order_and_page_keep_each_other_without_scripts(chromium: Browser, fleet: tuple[int, str]) -> None:
    servers, address = fleet
    tab = chromium.tab(DESK, scripts=False)
    tab.open(f"{address}/ui/servers?label=env%3Dprod")
    everything = int(tab.evaluate("document.querySelector('.choices a').innerText.split(' ')[0].replace(',', '')"))

    tab.evaluate("document.getElementById('q').focus()")
    tab.type("a")
    named = rows(tab)
    by_name = follow(tab, "thead a")
    last_page = follow(tab, ".pager a:nth-last-of-type(2)") if servers >= 500 else by_name
    running = follow(tab, ".choices a:last-child")

    assert everything == -(-servers // 2)
    assert named
    assert all("a" in name for name in named)
    assert (by_name["q"], by_name["label"], by_name["sort"]) == (["a"], ["env=prod"], ["name"])
    assert last_page.items() >= by_name.items()
    assert running == by_name | {"status": ["listed"]}
    assert rows(tab) == sorted(rows(tab))
    assert tab.problems == []
