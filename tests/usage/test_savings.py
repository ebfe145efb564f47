from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from query.records import UNCOUNTED_SHOWN, Baseline, TokenMetrics, token_metrics
from tests.support.fakes import make_tool


def test_saved_is_the_baseline_without_what_is_returned() -> None:
    metrics = token_metrics(Baseline(tokens=400, tools=4), [make_tool(tokens=100)], "cl100k_base")

    assert (metrics.baseline_tokens, metrics.returned_tokens, metrics.tokens_saved) == (400, 100, 300)
    assert metrics.savings_percentage == 75.0


def test_the_percentage_has_two_decimals() -> None:
    metrics = token_metrics(Baseline(tokens=3, tools=3), [make_tool(tokens=1)], "cl100k_base")

    assert metrics.savings_percentage == 66.67


def test_returning_all_tools_saves_nothing() -> None:
    metrics = token_metrics(Baseline(tokens=100, tools=1), [make_tool(tokens=100)], "cl100k_base")

    assert (metrics.tokens_saved, metrics.savings_percentage) == (0, 0)


def test_an_empty_catalogue_gives_zeros() -> None:
    metrics = token_metrics(Baseline(tokens=0, tools=0), [], "cl100k_base")

    numbers = (metrics.baseline_tokens, metrics.returned_tokens, metrics.tokens_saved, metrics.savings_percentage)
    assert numbers == (0, 0, 0, 0)


def test_more_returned_than_the_baseline_knows_yet_claims_no_savings() -> None:
    metrics = token_metrics(Baseline(tokens=50, tools=1), [make_tool(tokens=80)], "cl100k_base")

    assert (metrics.baseline_tokens, metrics.returned_tokens, metrics.tokens_saved) == (80, 80, 0)


def test_a_tool_without_a_count_is_in_neither_sum_and_is_listed() -> None:
    uncounted = make_tool("s", "odd", tokens={"o200k_base": 7})
    baseline = Baseline(tokens=30, tools=2, uncounted=("s:odd",), uncounted_total=1)

    metrics = token_metrics(baseline, [uncounted, make_tool("s", "even", tokens=10)], "cl100k_base")

    assert (metrics.baseline_tokens, metrics.returned_tokens) == (30, 10)
    assert (metrics.uncounted, metrics.uncounted_total) == (["s:odd"], 1)


def test_a_returned_tool_without_a_count_is_listed_before_its_server_s_record_names_it() -> None:
    metrics = token_metrics(Baseline(tokens=0, tools=0), [make_tool("s", "odd", tokens={})], "cl100k_base")

    assert (metrics.uncounted, metrics.uncounted_total) == (["s:odd"], 1)


def test_many_tools_without_a_count_are_named_in_part_and_counted_in_full() -> None:
    names = tuple(f"s:t{i}" for i in range(UNCOUNTED_SHOWN))
    returned = [make_tool("s", "in_answer", tokens={})]

    metrics = token_metrics(Baseline(tokens=0, tools=500, uncounted=names, uncounted_total=500), returned, "heuristic")

    assert metrics.uncounted == ["s:in_answer", *names[:-1]]
    assert metrics.uncounted_total == 500


VALID = token_metrics(Baseline(tokens=400, tools=4, model_tokens=300), [make_tool(tokens=100)], "cl100k_base")


@pytest.mark.parametrize(
    "wrong",
    [
        {"baseline_tokens": -5, "savings_percentage": 400},
        {"baseline_tokens": 99, "tokens_saved": -1},
        {"returned_tokens": -1, "tokens_saved": 401},
        {"tokens_saved": 301},
        {"savings_percentage": 100.01},
        {"savings_percentage": -0.01},
        {"answer_tokens": -1},
        {"uncounted_total": -1},
    ],
)
def test_metrics_that_cannot_be_are_rejected(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match="|".join(wrong)):
        TokenMetrics.model_validate({**VALID.model_dump(), **wrong})


def test_the_net_is_of_the_model_form_less_the_answer_and_may_be_negative() -> None:
    assert TokenMetrics.model_validate(VALID.model_dump()) == VALID
    assert [VALID.with_answer_tokens(tokens).net_tokens_saved for tokens in (0, 120, 301)] == [300, 180, -1]
    assert VALID.with_answer_tokens(120).with_answer_tokens(301) == VALID.with_answer_tokens(301)


@given(*[st.integers(0, 1_000)] * 4)
def test_offered_tools_are_in_no_part_of_the_baseline(tokens: int, model: int, offered: int, of_model: int) -> None:
    left = Baseline(tokens, 9, model_tokens=model).without(Baseline(offered, 2, model_tokens=of_model))

    assert (left.tokens, left.model_tokens, left.tools) == (max(0, tokens - offered), max(0, model - of_model), 7)


def test_only_the_heuristic_is_labelled_an_estimate() -> None:
    baseline = Baseline(tokens=0, tools=0)

    assert token_metrics(baseline, [], "heuristic").estimated
    assert not token_metrics(baseline, [], "o200k_base").estimated
