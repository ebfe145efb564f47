"""The history: what is saved above the axis, what it costs below, today beside the days before, and money."""

from __future__ import annotations

import re
from datetime import timedelta

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.caller import ANYONE, Caller
from query.usage.report import report_for, totals_for
from query.usage.usage import TOOLS_LIST, CatalogueSize, RowKey, Usage, today
from query.web.money import COOKIE, HIGHEST, price_of
from tests.support.fakes import FakeIndex, make_tool
from tests.support.filled import index_of
from tests.support.http_callers import app_of, http_client
from tests.support.pages import text

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("noon")]


def add(usage: Usage, back: int, baseline: int, answer: int) -> None:
    day = today() - timedelta(days=back)
    listed = {"answers": 1, "tokens": 100, "baseline_tokens": baseline, "baseline_tools": 9}
    usage.add({RowKey(day, "ann", "", TOOLS_LIST): listed})
    usage.add({RowKey(day, "ann", "", "find_tool"): {"answers": 1, "tokens": answer}})


async def shown(usage: Usage, path: str = "/ui/history", **cookies: str) -> httpx2.Response:
    async with http_client(app_of(index_of(make_tool("s", "t")), usage=usage)) as http:
        return await http.get(path, headers={"cookie": "; ".join(f"{name}={cookies[name]}" for name in cookies)})


async def test_a_day_that_cost_more_than_it_saved_has_its_cost_below_the_axis_and_no_bar(usage: Usage) -> None:
    add(usage, 1, 5_000, 400)
    add(usage, 0, 50, 200)

    page = (await shown(usage)).text

    heights = re.findall(r'<rect class="column"[^>]* height="([\d.]+)"', page)
    costs = re.findall(r'<rect class="cost"[^>]* height="([\d.]+)"', page)
    assert [float(height) > 0 for height in heights[-2:]] == [True, False]
    assert [float(height) > 0 for height in costs[-2:]] == [True, True]
    assert ">-" not in page.partition("<details")[0].partition('class="levels"')[2]  # no level below zero
    assert "-250" in page  # the table has the figure


async def test_today_is_beside_the_mean_of_the_days_before(usage: Usage) -> None:
    add(usage, 2, 5_000, 400)
    add(usage, 1, 3_000, 400)
    add(usage, 0, 9_000, 400)

    page = text(await shown(usage))

    assert "Today 8,500 tokens; 3,500 a day before" in page


async def test_money_is_shown_at_the_price_of_the_person_which_only_the_browser_keeps(usage: Usage) -> None:
    add(usage, 0, 1_000_500, 400)

    priced, without = await shown(usage, "/ui/history?price=2%2C5"), await shown(usage)
    kept = priced.headers["set-cookie"]
    later = [await shown(usage, path, **{COOKIE: "2.5"}) for path in ("/ui/history", "/ui")]
    forgotten = await shown(usage, "/ui/history?price=")

    assert "2.50" in priced.text
    assert kept.startswith(f"{COOKIE}=2.5;")
    assert "HttpOnly; SameSite=Strict" in kept
    assert all("2.50" in page.text for page in later)
    assert "money" not in text(without).replace("Show money", "")
    assert "Max-Age=0" in forgotten.headers["set-cookie"]


@given(text=st.text(max_size=12) | st.floats().map(str))
def test_any_text_is_a_price_above_zero_or_none(text: str) -> None:
    for price in (price_of({"price": text}, {}), price_of({}, {COOKIE: text})):
        assert price is None or 0 < price <= HIGHEST


@pytest.mark.parametrize("caller", [ANYONE, Caller("ann", groups=frozenset({"team"}))], ids=["all", "own"])
def test_the_first_screen_and_the_report_have_the_same_totals(usage: Usage, caller: Caller) -> None:
    for back, name in ((0, "ann"), (1, "bob"), (5, "ann"), (40, "ann")):
        day = today() - timedelta(days=back)
        listed = {"answers": 3, "tokens": 90, "baseline_tokens": 9_000 + back, "baseline_tools": 7, "bytes": 5}
        answered = {"answers": 2, "tokens": 40, "bytes": 8, "tokens_saved": 700, "searches": 2, "found_nothing": 1}
        usage.add({RowKey(day, name, "", TOOLS_LIST): listed, RowKey(day, name, "", "find_tool"): answered})
        usage.add({RowKey(day, name, "s", "t"): {"calls": 4, "answers": 1, "bytes": 9}})
    usage.put_size(today() - timedelta(days=9), CatalogueSize(1, 2, 3))

    totals, days = totals_for(caller, 14, usage)

    assert totals == report_for(caller, caller.scope, "14d", usage, FakeIndex()).totals
    assert totals.contexts > 0
    assert days == (10 if caller is ANYONE else 6)
