"""What definitions cost a context, and which of them a budget admits. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.text.tokens import estimate

if TYPE_CHECKING:
    from query.caller import Caller
    from shared.catalog import Encoding, IndexedTool

NAMED = 10


@dataclass(frozen=True, slots=True)
class BudgetResult:
    """Tools in their order, as far as the budget admits them, and those that it leaves out."""

    kept: Sequence[IndexedTool]
    excluded: Sequence[IndexedTool]
    encoding: Encoding
    budget_tokens: int | None

    @property
    def tokens(self) -> int:
        """Return what the kept definitions cost together."""
        return sum(cost(tool, self.encoding) for tool in self.kept)

    @property
    def warnings(self) -> list[str]:
        """Return what a caller should know of its budget, in sentences; none while it is not touched."""
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
    """Return which of these tools the caller's budget admits: each, in order, that there is still room for.

    Only an enforced budget leaves any out.
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


def cost(tool: IndexedTool, encoding: Encoding) -> int:
    """Return the tokens of a definition; where they could not be counted, they are estimated."""
    counted = tool.token_counts.get(encoding)
    return estimate(tool.definition.wire) if counted is None else counted


def _named(tools: Sequence[IndexedTool], encoding: Encoding) -> str:
    named = [f"{tool.qualified_name} ({cost(tool, encoding)})" for tool in tools[:NAMED]]
    more = len(tools) - len(named)
    return ", ".join([*named, f"and {more} more"] if more else named)
