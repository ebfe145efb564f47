from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import date, timedelta
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.usage.report import SHOWN, report
from query.usage.usage import OTHERS, TOOLS_LIST, Counts, RowKey, days_of

DAY = date(2026, 11, 21)


def rows_of(caller: str, lists: int, answers: int, day: date = DAY, **more: int) -> dict[RowKey, Counts]:
    """Return a caller's lists of 60 tokens each, against 100 tools of 1,000 tokens, and its answers of 20 tokens."""
    listed = {"answers": lists, "tokens": 60 * lists, "baseline_tokens": 1_000 * lists, "baseline_tools": 100 * lists}
    return {
        RowKey(day, caller, "", TOOLS_LIST): listed,
        RowKey(day, caller, "", "find_tool"): {"answers": answers, "tokens": 20 * answers} | more,
    }


def test_a_caller_claims_at_most_one_baseline_for_each_answer_of_its_day() -> None:
    totals = report(rows_of("ann", 10, 3), DAY, DAY).totals

    assert (totals.contexts, totals.baseline_tokens) == (3, 3_000)
    assert totals.net_tokens_saved == 3 * 1_000 - 10 * 60 - 3 * 20


def test_the_answers_of_one_caller_or_day_claim_no_list_of_another() -> None:
    rows = rows_of("probe", 5, 0) | rows_of("ann", 0, 5) | rows_of("ann", 5, 0, DAY - timedelta(days=1))

    assert report(rows, DAY - timedelta(days=1), DAY).totals.contexts == 0


def test_a_small_catalogue_is_cheaper_to_list_and_the_report_states_it() -> None:
    listed = {"answers": 2, "tokens": 120, "baseline_tokens": 80, "baseline_tools": 8}
    rows = {
        RowKey(DAY, "ann", "", TOOLS_LIST): listed,
        RowKey(DAY, "ann", "", "find_tool"): {"answers": 2, "tokens": 40},
    }

    found = report(rows, DAY, DAY)

    assert found.totals.net_tokens_saved == 80 - 120 - 40
    # a context costs 60 + 20 tokens, a tool 10
    assert found.break_even_tools == 8
    assert found.advice == "Below 8 tools in this catalogue, listing all is cheaper (generic profile)."


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 10**4), st.integers(0, 10**4), st.integers(1, 10**4))
def test_the_break_even_is_the_least_catalogue_that_costs_its_contexts_as_much(
    lists: int, answers: int, listed: int, answered: int, tokens: int
) -> None:
    rows = {
        RowKey(DAY, "ann", "", TOOLS_LIST): {
            "answers": lists, "tokens": listed * lists, "baseline_tokens": tokens * lists, "baseline_tools": 7 * lists
        },
        RowKey(DAY, "ann", "", "find_tool"): {"answers": answers, "tokens": answered},
    }  # fmt: skip
    contexts = min(lists, answers)
    cost = listed * contexts + answered

    least = next(tools for tools in count() if tools * tokens * contexts >= 7 * cost)

    assert report(rows, DAY, DAY).break_even_tools == least


def test_without_a_context_there_is_nothing_to_break_even() -> None:
    found = report({}, DAY, DAY)

    assert found.break_even_tools is None
    assert found.totals.searches == found.totals.net_tokens_saved == 0
    assert "break_even_tools" not in found.as_object()
    assert report(rows_of("probe", 1, 0), DAY, DAY).break_even_tools is None


def test_lists_and_answers_are_shown_by_tool_the_most_expensive_first() -> None:
    rows = rows_of("ann", 1, 5, bytes=300, tokens_saved=900, searches=2, found_nothing=1) | rows_of("bob", 1, 0)

    found = report(rows, DAY, DAY)

    assert [(use.name, use.answers, use.tokens, use.bytes) for use in found.own_tools] == [
        (TOOLS_LIST, 2, 120, 0), ("find_tool", 5, 100, 300),
    ]  # fmt: skip
    assert (found.totals.tokens_saved, found.totals.searches, found.totals.found_nothing) == (900, 2, 1)


def test_the_most_frequent_tools_are_named_and_the_rest_is_one_sum() -> None:
    rows = {RowKey(DAY, "ann", "srv", f"t{number:02}"): {"answers": number} for number in range(1, 31)}

    found = report(rows, DAY, DAY)

    assert [used.name for used in found.by_tool[:2]] == ["srv:t30", "srv:t29"]
    assert len(found.by_tool) == SHOWN + 1
    assert found.by_tool[-1].name == OTHERS
    assert sum(used.shown for used in found.by_tool) == sum(range(31))
    assert [(used.name, used.shown) for used in found.by_server] == [("srv", sum(range(31)))]


def test_calls_and_their_results_are_summed_by_server_and_tool() -> None:
    called = {"answers": 0, "calls": 2, "failed_calls": 1, "bytes": 300}
    rows = {RowKey(DAY, "ann", "srv", "read"): called, RowKey(DAY, "bob", "srv", "write"): called}

    found = report(rows, DAY, DAY)

    (server,) = found.by_server
    assert (server.calls, server.failed_calls, server.result_bytes) == (4, 2, 600)
    assert [(tool.name, tool.calls) for tool in found.by_tool] == [("srv:read", 2), ("srv:write", 2)]
    assert found.by_day == []


def test_tools_that_may_not_be_named_are_among_the_others() -> None:
    rows = {RowKey(DAY, "ann", "srv", name): {"answers": 1} for name in ("open", "secret")}

    found = report(rows, DAY, DAY, lambda key: key.tool == "open")

    assert "secret" not in str(found.as_object())
    assert {used.name: used.shown for used in found.by_tool} == {"srv:open": 1, OTHERS: 1}


some_rows = st.builds(
    rows_of, st.sampled_from(["ann", "bob"]), st.integers(0, 9), st.integers(0, 9), st.dates(DAY, DAY + timedelta(5))
)


@given(st.lists(some_rows, max_size=9))
def test_the_days_together_are_the_whole(parts: list[Mapping[RowKey, Counts]]) -> None:
    found = report({key: counts for rows in parts for key, counts in rows.items()}, DAY, DAY + timedelta(days=5))

    days: Counter[str] = Counter()
    for day in found.by_day:
        days.update(day.model_dump(exclude={"day"}))
    totals = found.totals.model_dump()
    assert {name: days[name] for name in totals} == totals
    spent = totals["listed_tokens"] + totals["answer_tokens"]
    assert totals["net_tokens_saved"] == totals["baseline_tokens"] - spent


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
