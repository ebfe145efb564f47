"""The overview: the net in a sentence, problems that the service knows, and texts that connect a client."""

from __future__ import annotations

import html
import json
import re
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path

import pytest
from starlette.applications import Starlette

from query.caller import ANYONE, Caller
from query.catalogue import Catalogue
from query.listener import open_listener
from query.records import Ledger
from query.usage.usage import TOOLS_LIST, RowKey, Rows, Usage, today
from query.web.page import PageRequest, render
from query.web.routes import page_routes
from query.web.views import overview
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


async def test_the_net_is_a_sentence_before_all_figures(usage: Usage) -> None:
    add_day(usage, 0, 5_000, 400)
    add_day(usage, 4, 3_000, 100)

    page = await shown(usage)

    assert "In the last 5 days, Toolscale kept 7,300 tokens out of the contexts of agents, net." in page
    assert "All tools would have cost 8,000 tokens in 2 contexts; the lists and answers of Toolscale cost 700." in page
    assert page.index("7,300 tokens") < page.index("Context of all tools")


async def test_a_loss_is_called_one(usage: Usage) -> None:
    add_day(usage, 0, 150, 400)

    page = await shown(usage)

    assert "Today, Toolscale cost 350 tokens more than it saved." in page
    assert "in 1 context;" in page


async def test_without_a_context_nothing_is_claimed(usage: Usage) -> None:
    usage.add({RowKey(today(), "ann", "", TOOLS_LIST): {"answers": 1, "tokens": 100, "bytes": 1}})

    page = await shown(usage)

    assert "Nothing is saved yet: " in page
    assert "The lists so far cost 100 tokens." in page


@pytest.mark.parametrize("path", ["/ui", "/ui/history"])
async def test_the_first_day_has_its_bar(usage: Usage, path: str) -> None:
    add_day(usage, 0, 5_000, 400)

    page = await shown(usage, path)

    assert "Net tokens saved, by day" in page
    assert f"{today().day} {today():%b} 4,500 " in page


async def test_without_a_history_the_page_makes_no_statement_about_savings() -> None:
    page = await shown()

    assert not re.search("saved|kept|history", page)


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
