"""The feed: what servers and callers did last, to those who may see it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import structlog

from query.caller import ANYONE, Caller
from query.catalogue import Catalogue
from query.records import Ledger
from query.usage.last_calls import KEPT, LastCall, LastCalls
from query.web.feed import MOST_CALLS, MOST_SERVERS, feed
from query.web.page import PageRequest, age, render
from shared.catalog import Endpoint, ServerRecord
from tests.support.fakes import FakeEmbedder, FakeIndex, make_tool
from tests.support.filled import index_of, record_of
from tests.support.http_callers import app_of, http_client

pytestmark = pytest.mark.anyio


def shown(catalogue: Catalogue, caller: Caller = ANYONE) -> str:
    page = feed(PageRequest(caller, caller.scope, catalogue, {}, {}))
    return bytes(render(page, page_name="feed", caller=caller).body).decode()


def with_calls(*calls: LastCall) -> Catalogue:
    index = index_of(make_tool("git", "git_log"))
    catalogue = Catalogue(index, FakeEmbedder(), Ledger(index))
    for call in calls:
        catalogue.last_calls.add(call)
    return catalogue


def call(caller: str = "ann", **more: Any) -> LastCall:
    return replace(LastCall(time.time(), caller, "git", "git_log", "ok", 12), **more)


def test_a_call_shows_its_tool_caller_outcome_and_time_and_the_last_one_is_first() -> None:
    html = shown(with_calls(call("ann"), call("bob", outcome="CallDenied", took_ms=7)))

    assert html.index("bob") < html.index("ann")
    assert 'href="/ui/tools/git%3Agit_log"' in html
    assert "12 ms" in html


def test_a_caller_with_less_rights_sees_its_own_calls() -> None:
    of = with_calls(call("ann"), call("bob"))

    html = shown(of, Caller("ann", groups=frozenset({"team"})))

    assert "ann" in html
    assert "bob" not in html


def test_a_server_that_is_being_installed_is_first_and_a_listed_one_has_its_numbers() -> None:
    index = index_of(make_tool("git", "git_log", tokens=30, model_tokens=20))
    index.put_server(ServerRecord(server_id="npx", endpoint=Endpoint(transport="stdio"), revision=10))
    failed: dict[str, Any] = {"stale_since": 2.0, "last_error": "connection refused", "last_listed_at": None}
    index.put_server(record_of("mail", **failed))

    html = shown(Catalogue(index, FakeEmbedder(), Ledger(index)))

    assert html.index("installing") < html.index("1 tool, 20 tokens")
    assert "connection refused" in html


@pytest.mark.parametrize(("index", "view"), [(FakeIndex(), "empty"), (index_of(make_tool("s", "t")), "full")])
def test_the_page_knows_when_it_has_to_be_another_one(index: FakeIndex, view: str) -> None:
    assert f'data-view="{view}"' in shown(Catalogue(index, FakeEmbedder(), Ledger(index)))


def test_a_busy_service_has_a_short_feed_and_keeps_a_bounded_number_of_calls() -> None:
    index = index_of(*(make_tool(f"s{number}", "t") for number in range(50)))
    catalogue, calls = Catalogue(index, FakeEmbedder(), Ledger(index)), LastCalls()
    for number in range(KEPT + 50):
        calls.add(call(took_ms=number))

    html = shown(replace(catalogue, last_calls=calls))

    assert html.count("<li>") == MOST_SERVERS + MOST_CALLS
    assert len(list(calls.of(None))) == KEPT
    assert next(calls.of(None)).took_ms == KEPT + 49


async def test_reading_the_feed_again_and_again_fills_no_log() -> None:
    with structlog.testing.capture_logs() as lines:
        async with http_client(app_of(index_of(make_tool("s", "t")))) as http:
            assert (await http.get("/ui/feed")).status_code == 200

    assert lines == []


@pytest.mark.parametrize(
    ("age_s", "words"),
    [(0, "just now"), (42, "42 seconds ago"), (61, "1 minute ago"), (7_300, "2 hours ago"), (86_401, "1 day ago")],
)
def test_an_age_is_in_words(age_s: int, words: str) -> None:
    assert age(time.time() - age_s - 0.5) == words
