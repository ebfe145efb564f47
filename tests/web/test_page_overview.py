"""The overview: the net in a sentence, problems that the service knows, and texts that connect a client."""

from __future__ import annotations

import html
import json
import re
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette

from query.caller import ANYONE, Caller
from query.catalogue import Catalogue
from query.listener import open_listener
from query.records import Ledger
from query.usage.usage import TOOLS_LIST, RowKey, Rows, Usage, today
from query.web.overview import Saved, overview
from query.web.page import PageRequest, percent, render
from query.web.routes import page_routes
from shared.intents.intents import open_intents
from shared.settings import load_settings
from tests.support.fakes import FakeEmbedder, FakeIndex
from tests.support.http_callers import app_of, entry, http_client, static
from tests.support.pages import blocks, get, text
from tests.support.replicated import put_server, tool

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("noon")]


def index() -> FakeIndex:
    index = FakeIndex()
    put_server(index, "clock", [tool("get_time", "Tell the time", 30)], "clock")
    return index


def add_day(usage: Usage, back: int, baseline: int, answer: int, lists: int = 1) -> None:
    """Record a list and an answer of this many tokens, of a day so many days ago."""
    usage.add(_use(today() - timedelta(days=back), baseline, answer, lists))


def _use(day: date, baseline: int, answer: int, lists: int = 1) -> Rows:
    listed = {"answers": lists, "tokens": 100, "bytes": 400, "baseline_tokens": baseline, "baseline_tools": 9}
    answered = {"answers": 1, "tokens": answer, "bytes": 9}
    return {RowKey(day, "ann", "", TOOLS_LIST): listed, RowKey(day, "ann", "", "find_tool"): answered}


async def shown(usage: Usage | None = None, path: str = "/ui") -> str:
    return text(await get(index(), path, usage))


def rendered(catalogue: Catalogue, caller: Caller = ANYONE) -> str:
    page = overview(PageRequest(caller, caller.scope, catalogue, {}, {}, "http://127.0.0.1:8765"))
    return bytes(render(page, page_name="overview", caller=caller).body).decode()


# --- net ---


async def test_what_is_saved_is_before_all_other_figures_with_both_sides_of_the_sum(usage: Usage) -> None:
    add_day(usage, 0, 5_000, 400)
    add_day(usage, 4, 3_000, 100)

    page = await shown(usage)

    places = [page.index(each) for each in ("7,300 tokens", "91.2 %", "8,000 tokens", "700 tokens", "Context of all")]
    assert places == sorted(places)
    assert "in 2 contexts" in page
    assert "5 days" in page


async def test_a_loss_has_no_percentage(usage: Usage) -> None:
    add_day(usage, 0, 150, 400)

    page = await shown(usage)

    assert "350 tokens more than" in page
    assert "%" not in page.partition("Context of all")[0]


@given(before=st.integers(0, 10**9), after=st.integers(0, 10**9))
def test_no_rounding_claims_that_all_is_saved(before: int, after: int) -> None:
    part = Saved(before, after, contexts=1, days=1).part

    assert (part is None) == (before <= after)
    assert part is None or percent(part) != "100.0 %"


async def test_without_a_context_nothing_is_claimed(usage: Usage) -> None:
    usage.add({RowKey(today(), "ann", "", TOOLS_LIST): {"answers": 1, "tokens": 100, "bytes": 1}})

    page = await shown(usage)

    assert "Nothing is saved yet: " in page
    assert "The lists so far cost 100 tokens." in page


async def test_the_first_day_has_its_bar(usage: Usage) -> None:
    add_day(usage, 0, 5_000, 400)

    page = await shown(usage, "/ui/history")

    assert "Net tokens saved, by day" in page
    assert f"{today().day} {today():%b} 4,500 " in page


async def test_without_a_history_the_page_makes_no_statement_about_savings() -> None:
    page = await shown()

    assert not re.search("(?i)saved|kept", page)


async def test_the_time_of_the_page_is_beside_a_link_that_renews_it() -> None:
    assert re.search(r"As of \d{4}-\d\d-\d\d \d\d:\d\d UTC \. Refresh", await shown())


# --- problems ---


@pytest.mark.parametrize(
    ("caller", "letters", "is_shown"),
    [
        (ANYONE, 3, True),
        (ANYONE, 0, False),
        (ANYONE, None, False),
        (Caller("ann", frozenset({"team"})), 3, False),
        (Caller("dev", toolset="dev"), 3, False),
    ],
)
def test_dead_letters_are_shown_to_a_caller_that_sees_all(
    caller: Caller, letters: int | None, is_shown: bool, tmp_path: Path
) -> None:
    with closing(open_intents(load_settings(data_dir=tmp_path))) as intents:
        for _ in range(letters or 0):
            intents.add_dead_letter("no event", "{}")
        known = None if letters is None else intents
        catalogue = Catalogue(index(), FakeEmbedder(), Ledger(index()), intents=known)

        assert ("Rejected events and messages: 3" in rendered(catalogue, caller)) is is_shown


# --- clients ---


async def test_the_texts_that_connect_a_client_name_this_service() -> None:
    page = await get(index(), "/ui")

    command, config = blocks(page)
    assert command == "claude mcp add --transport http toolscale http://127.0.0.1/mcp"
    assert json.loads(config) == {"mcpServers": {"toolscale": {"type": "http", "url": "http://127.0.0.1/mcp"}}}
    assert "TOKEN" not in page.text


async def test_behind_an_ingress_the_texts_name_the_public_url() -> None:
    settings = load_settings(port=0, public_url="https://tools.example.org/mcp")
    with closing(open_listener(settings)) as listener:
        routes = page_routes(Catalogue(index(), FakeEmbedder(), Ledger(index())), listener)
        async with http_client(Starlette(routes=routes)) as http:
            page = await http.get("/ui")

    assert "claude mcp add --transport http toolscale https://tools.example.org/mcp" in page.text
    assert "http://127.0.0.1" not in page.text


async def test_with_tokens_the_texts_have_a_place_for_one_and_never_the_callers_own(tmp_path: Path) -> None:
    known = static(tmp_path / "t.toml", ann=entry("some-secret"))

    async with http_client(app_of(index(), known), "some-secret") as http:
        page = await http.get("/ui")

    assert "--header 'Authorization: Bearer TOKEN'" in html.unescape(page.text)
    assert "some-secret" not in page.text
