"""The page of a tool and a search in a real Chromium: within the policy, by keyboard alone."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import replace

import pytest

from query.tools.registry import builtin_definitions
from shared.catalog import IndexedTool
from shared.service.http import HttpLimits
from shared.text.tokens import count_forms, counter
from tests.support.browser import Browser, browser
from tests.support.calling import upstreams_to
from tests.support.fakes import FakeIndex, make_tool
from tests.support.http_callers import app_of
from tests.support.http_limits import limited_server
from tests.support.replicated import put_server

pytestmark = [pytest.mark.process, pytest.mark.browser]

PHONE, DESK = 360, 1200
PAGES = ("/ui", "/ui/tools/clock0%3Afind_tool", "/ui/find?q=search+tools")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Generator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture(scope="module")
def service() -> Generator[str]:
    """Yield the address of the page over our own tools on two replicas."""
    index, count = FakeIndex(), counter("cl100k_base")
    tools: list[IndexedTool] = []
    for definition in builtin_definitions():
        wire, model = count_forms(definition, {"cl100k_base": count})
        tools.append(replace(make_tool(), definition=definition, token_counts=wire, model_counts=model))
    for number in range(2):
        put_server(index, f"clock{number}", tools)
    with limited_server(app_of(index, None, upstreams_to({})), HttpLimits()) as (host, port):
        yield f"http://{host}:{port}"


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("path", PAGES)
def test_a_page_breaks_no_policy_and_does_not_scroll_sideways(
    chromium: Browser, service: str, path: str, width: int
) -> None:
    tab = chromium.tab(width, scripts=False)

    tab.open(service + path)

    assert tab.problems == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_a_click_selects_a_whole_call_to_copy(chromium: Browser, service: str) -> None:
    tab = chromium.tab(scripts=False)
    tab.open(service + PAGES[2])

    tab.evaluate("document.querySelector('.hits details').open = true")
    tab.evaluate("document.querySelector('.hits pre').scrollIntoView({block: 'center'})")
    place = tab.evaluate(
        "(box => ({x: box.x + 30, y: box.y + 20}))(document.querySelector('.hits pre').getBoundingClientRect())"
    )
    for kind in ("mousePressed", "mouseReleased"):
        tab.call("Input.dispatchMouseEvent", {"type": kind, **place, "button": "left", "clickCount": 1})

    selected = json.loads(tab.evaluate("getSelection().toString()"))
    assert set(selected) == {"tool_name", "parameters"}
