"""The tokens of definitions to a context, and the definitions that a budget admits. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.quoting import quoted_name
from shared.text.tokens import estimate_tool

if TYPE_CHECKING:
    from query.caller import Caller
    from query.usage.recent_calls import CallCounts
    from shared.catalog import Encoding, IndexedTool

NAMED = 10


@dataclass(frozen=True, slots=True)
class BudgetResult:
    """The tools that the budget admits, in their order, and the excluded ones; `denied` are those of the policy."""

    kept: Sequence[IndexedTool]
    excluded: Sequence[IndexedTool]
    encoding: Encoding
    budget_tokens: int | None
    denied: Sequence[IndexedTool] = ()

    @property
    def tokens(self) -> int:
        """Return the tokens of the kept definitions together."""
        return sum(cost(tool, self.encoding) for tool in self.kept)

    @property
    def warnings(self) -> list[str]:
        """Return sentences on excluded tools or an exceeded budget; none otherwise."""
        sentences: list[str] = []
        if self.excluded:
            tokens = sum(cost(tool, self.encoding) for tool in self.excluded)
            sentences.append(
                f"Left out for the budget of {self.budget_tokens} tokens: {_named(self.excluded, self.encoding)}; "
                f"together {tokens} tokens."
            )
        elif self.budget_tokens is not None and self.tokens > self.budget_tokens:
            sentences.append(
                f"The definitions cost {self.tokens} tokens, more than the budget of {self.budget_tokens}."
            )
        return sentences


def apply_budget(tools: Sequence[IndexedTool], caller: Caller, encoding: Encoding) -> BudgetResult:
    """Return the tools that the caller's budget admits: in order, each that still fits.

    Only an enforced budget excludes tools.
    """
    kept: list[IndexedTool] = []
    excluded: list[IndexedTool] = []
    room = caller.limit_tokens
    for tool in tools:
        tokens = cost(tool, encoding)
        if room is None or tokens <= room:
            kept.append(tool)
            room = None if room is None else room - tokens
        else:
            excluded.append(tool)
    budget = caller.limit_tokens if excluded else caller.budget_tokens
    return BudgetResult(kept, excluded, encoding, budget)


def by_use(tools: Sequence[IndexedTool], calls: CallCounts, encoding: Encoding) -> list[IndexedTool]:
    """Return the tools with the most calls first; after equal calls the cheaper, then by qualified name."""
    counts = dict(calls)
    return sorted(
        tools,
        key=lambda tool: (-counts.get(tool.qualified_name, 0), cost(tool, encoding), tool.qualified_name),
    )


def cost(tool: IndexedTool, encoding: Encoding) -> int:
    """Return the tokens of a tool's model form, or an estimate if they could not be counted."""
    counted = tool.model_counts.get(encoding)
    return estimate_tool(tool.server_id, tool.definition) if counted is None else counted


def _named(tools: Sequence[IndexedTool], encoding: Encoding) -> str:
    named = [f"{quoted_name(tool.qualified_name)} ({cost(tool, encoding)})" for tool in tools[:NAMED]]
    more = len(tools) - len(named)
    return ", ".join([*named, f"and {more} more"] if more else named)
