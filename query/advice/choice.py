"""The tools within a token budget that cover the most calls: a knapsack. Pure arithmetic.

Two orders fill the budget: by calls per token, and by calls. The choice with more calls wins.
It covers at least half of the calls that any choice covers. Let b be the first tool without room in the order by
calls per token. The tools before it and b together cover more than any choice (Dantzig, 1957). So either these tools
cover half, or b alone does, and the order by calls begins with a tool that has at least b's calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from query.advice.use import ToolUse


def best_within(tools: Sequence[ToolUse], budget_tokens: int) -> list[ToolUse]:
    """Return called tools that together cost at most `budget_tokens`, the most called first.

    They have at least half of the calls of the best choice, and those of an enforced budget's order or more.
    """
    called = [tool for tool in tools if tool.calls]
    choices = [_filled(called, budget_tokens, key) for key in (_by_calls_per_token, by_calls)]
    chosen = max(choices, key=calls_of)
    return sorted(chosen, key=by_calls)


def needed_tokens(tools: Sequence[ToolUse], part: float) -> int:
    """Return a budget within which `best_within` covers this part of the calls: that of the cheaper order."""
    wanted = part * calls_of(tools)
    return min(_tokens_until(sorted(tools, key=key), wanted) for key in (_by_calls_per_token, by_calls))


def calls_of(tools: Sequence[ToolUse]) -> int:
    """Return the calls of these tools."""
    return sum(tool.calls for tool in tools)


def tokens_of(tools: Sequence[ToolUse]) -> int:
    """Return the tokens of these tools."""
    return sum(tool.tokens for tool in tools)


def by_calls(tool: ToolUse) -> tuple[float, int, str]:
    """Return a key that sorts the most called tool first, then the cheapest, as an enforced budget does."""
    return -tool.calls, tool.tokens, tool.name


def _by_calls_per_token(tool: ToolUse) -> tuple[float, int, str]:
    return -tool.calls / max(tool.tokens, 1), tool.tokens, tool.name


def _tokens_until(ordered: Sequence[ToolUse], wanted: float) -> int:
    sums = accumulate(tool.calls for tool in ordered)
    before = [tool for tool, calls in zip(ordered, sums, strict=True) if calls - tool.calls < wanted]
    return tokens_of(before)


def _filled(
    tools: Sequence[ToolUse], budget_tokens: int, key: Callable[[ToolUse], tuple[float, int, str]]
) -> list[ToolUse]:
    """Return each tool, in this order, that still fits."""
    kept: list[ToolUse] = []
    room = budget_tokens
    for tool in sorted(tools, key=key):
        if tool.tokens <= room:
            kept.append(tool)
            room -= tool.tokens
    return kept
