"""The advised choice over any costs and calls, against every possible choice."""

from __future__ import annotations

from itertools import combinations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from query.caller import Caller
from query.toolsets.advice import AdvisedTool, best_within, by_calls, calls_of, tokens_of
from query.toolsets.offers import apply_budget, by_use
from tests.support.fakes import make_tool
from tests.support.profiles import examples

# tokens and calls
tools_of_costs = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=9).map(
    lambda rows: [
        AdvisedTool(name=f"s:{number}", tokens=tokens, calls=calls) for number, (tokens, calls) in enumerate(rows)
    ]
)
budgets = st.integers(0, 120)


def used(*rows: tuple[int, int]) -> list[AdvisedTool]:
    return [AdvisedTool(name=f"s:{number}", tokens=tokens, calls=calls) for number, (tokens, calls) in enumerate(rows)]


def most_calls(tools: list[AdvisedTool], budget: int) -> int:
    """Return the calls of the best choice, among all."""
    every = (choice for size in range(len(tools) + 1) for choice in combinations(tools, size))
    return max(calls_of(choice) for choice in every if tokens_of(choice) <= budget)


@settings(max_examples=examples(300))
@given(tools=tools_of_costs, budget=budgets)
# by calls per token alone, the small tool takes the room of the great one
@example(used((1, 2), (40, 12)), 40)
# by calls alone, the great tool takes the room of two
@example(used((40, 12), (20, 11), (20, 11)), 40)
def test_the_choice_fits_and_covers_at_least_half_of_the_best(tools: list[AdvisedTool], budget: int) -> None:
    chosen = best_within(tools, budget)

    assert tokens_of(chosen) <= budget
    assert len({tool.name for tool in chosen}) == len(chosen)
    assert chosen == sorted(chosen, key=by_calls)
    assert all(tool.calls for tool in chosen)
    assert 2 * calls_of(chosen) >= most_calls(tools, budget)


@settings(max_examples=examples(300))
@given(tools=tools_of_costs, budget=budgets)
@example(used((1, 2), (40, 12)), 40)
def test_the_choice_covers_no_fewer_calls_than_an_enforced_budget(tools: list[AdvisedTool], budget: int) -> None:
    counts = frozenset((tool.name, tool.calls) for tool in tools)
    indexed = [make_tool("s", tool.name.removeprefix("s:"), model_tokens=tool.tokens) for tool in tools]
    caller = Caller("ann", limit_tokens=budget)

    kept = apply_budget(by_use(indexed, counts, "cl100k_base"), caller, "cl100k_base").kept

    calls = dict(counts)
    assert calls_of(best_within(tools, budget)) >= sum(calls[tool.qualified_name] for tool in kept)
