from __future__ import annotations

from collections import Counter
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.history.periods import days_of
from query.history.store import RowKey, ServerSize
from query.reports.savings import SHOWN, report
from query.savings.savings import OTHERS

DAY = date(2026, 11, 21)


def counters(searches: int = 1, **more: int) -> dict[str, int]:
    """Return counters of searches of 1,000 tokens in 100 tools each, beside 60 of our own, of which 20 came back."""
    per_search = {"baseline_tokens": 1_000, "baseline_tools": 100, "own_tokens": 60, "returned_tokens": 20}
    return {"searches": searches} | {name: tokens * searches for name, tokens in per_search.items()} | more


def test_each_search_in_a_session_of_its_own_saves_all_tools_less_ours_and_what_came_back() -> None:
    net = report({RowKey(DAY, "ann"): counters(3), RowKey(DAY, "bob"): counters(1)}, DAY, DAY).net

    assert net.if_each_search_is_a_session == 4 * (1_000 - 60 - 20)


def test_callers_with_one_session_a_day_list_all_tools_and_ours_once() -> None:
    net = report({RowKey(DAY, "ann"): counters(3), RowKey(DAY, "bob"): counters(1)}, DAY, DAY).net

    assert net.if_callers_have_one_session_a_day == (1_000 - 60 - 3 * 20) + (1_000 - 60 - 20)
    assert net.own_definitions_tokens == 60


def test_repeats_cost_what_they_return_and_need_no_session() -> None:
    repeated = counters(1) | {"searches": 3, "repeats": 2, "returned_tokens": 60}

    net = report({RowKey(DAY, "ann"): repeated}, DAY, DAY).net

    assert net.if_each_search_is_a_session == net.if_callers_have_one_session_a_day == 1_000 - 60 - 60


def test_a_small_catalogue_is_cheaper_to_list_and_the_report_says_so() -> None:
    small = {"searches": 2, "baseline_tokens": 80, "baseline_tools": 8, "own_tokens": 120, "returned_tokens": 40}

    found = report({RowKey(DAY, "ann"): small}, DAY, DAY)

    assert found.net.if_each_search_is_a_session == 80 - 120 - 40
    # a session costs 60 + 20 tokens, a tool 10
    assert found.break_even_tools == 8
    assert found.advice == "Below 8 tools in this catalogue, listing all is cheaper."


def test_without_a_search_there_is_nothing_to_break_even() -> None:
    found = report({}, DAY, DAY)

    assert found.break_even_tools is None
    assert found.totals.searches == found.net.if_each_search_is_a_session == 0
    assert "break_even_tools" not in found.as_object()


def test_the_most_frequent_tools_are_named_and_the_rest_is_one_sum() -> None:
    rows = {
        RowKey(DAY, "ann", "srv", f"t{number:02}"): {"answers": number, "definition_tokens": 5}
        for number in range(1, 31)
    }

    found = report(rows, DAY, DAY)

    assert [used.name for used in found.by_tool[:2]] == ["srv:t30", "srv:t29"]
    assert len(found.by_tool) == SHOWN + 1
    assert found.by_tool[-1].name == OTHERS
    assert sum(used.answers for used in found.by_tool) == sum(range(31))
    assert [(used.name, used.definition_tokens) for used in found.by_server] == [("srv", 150)]


def test_calls_and_their_results_are_summed_by_server_and_tool() -> None:
    called = {"answers": 0, "calls": 2, "failed_calls": 1, "response_bytes": 300}
    rows = {RowKey(DAY, "ann", "srv", "read"): called, RowKey(DAY, "bob", "srv", "write"): called}

    found = report(rows, DAY, DAY)

    (server,) = found.by_server
    assert (server.calls, server.failed_calls, server.response_bytes) == (4, 2, 600)
    assert [(tool.name, tool.calls) for tool in found.by_tool] == [("srv:read", 2), ("srv:write", 2)]


def test_what_servers_saved_is_told_of_each_that_was_large_enough() -> None:
    used = {"answers": 1, "definition_tokens": 50, "returned_tokens": 20}
    rows = {
        RowKey(DAY, "ann", "small", "read"): used,
        RowKey(DAY, "ann", "large"): {"answers": 0, "tokens_saved": 300},
        RowKey(DAY, "bob", "large"): {"answers": 0, "tokens_saved": 500},
        RowKey(DAY, "bob", "larger"): {"answers": 0, "tokens_saved": 900},
        RowKey(DAY, "bob", OTHERS): {"answers": 0, "tokens_saved": 7},
    }

    found = report(rows, DAY, DAY)

    assert [(used.name, used.tokens_saved) for used in found.by_server] == [
        ("small", None), ("larger", 900), ("large", 800), (OTHERS, 7),
    ]  # fmt: skip
    assert [(used.name, used.returned_tokens, used.tokens_saved) for used in found.by_tool] == [
        ("small:read", 20, None)
    ]
    assert found.totals.searches == 0
    assert found.by_day == []


def test_a_server_whose_tools_nobody_could_find_is_no_part_of_the_days_catalogue() -> None:
    sizes = {DAY: {"a": ServerSize(2, 30), "stopped": ServerSize(0, 0)}}

    (day,) = report({}, DAY, DAY, sizes=sizes).catalogue

    assert (day.day, day.servers, day.tools, day.tokens) == (DAY, 1, 2, 30)


def test_tools_that_may_not_be_named_are_among_the_others() -> None:
    rows = {RowKey(DAY, "ann", "srv", name): {"answers": 1, "definition_tokens": 5} for name in ("open", "secret")}

    found = report(rows, DAY, DAY, lambda key: key.tool == "open")

    assert "secret" not in str(found.as_object())
    assert {used.name: used.answers for used in found.by_tool} == {"srv:open": 1, OTHERS: 1}


@given(
    st.dictionaries(
        st.builds(RowKey, st.dates(DAY, DAY + timedelta(days=5)), st.sampled_from(["ann", "bob"])),
        st.integers(1, 9).map(counters),
    )
)
def test_the_days_together_are_the_whole_and_one_session_never_saves_more_than_many(
    rows: dict[RowKey, dict[str, int]],
) -> None:
    found = report(rows, DAY, DAY + timedelta(days=5))

    days: Counter[str] = Counter()
    for day in found.by_day:
        days.update({name: value for name, value in day.model_dump(exclude={"day"}).items()})
    assert dict(+days) == {name: value for name, value in found.totals.model_dump().items() if value}
    assert found.net.if_callers_have_one_session_a_day <= found.net.if_each_search_is_a_session


@pytest.mark.parametrize(
    ("period", "first", "last"),
    [
        ("today", DAY, DAY),
        ("1d", DAY, DAY),
        ("7d", date(2026, 11, 15), DAY),
        ("2026-02-28", date(2026, 2, 28), date(2026, 2, 28)),
    ],
)
def test_a_period_is_some_days(period: str, first: date, last: date) -> None:
    assert days_of(period, DAY) == (first, last)


@pytest.mark.parametrize("period", ["", "0d", "401d", "7", "-1d", "2026-02-30", "yesterday", "\u0667d"])
def test_any_other_period_is_refused(period: str) -> None:
    with pytest.raises(ValueError, match=r"expected today|day"):
        days_of(period, DAY)
