"""Tokens of definitions, in the wire form and in each profile of the model form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from query.tools.registry import builtin_definitions
from shared.errors import CountFailed
from shared.text.tokens import PROFILES, counter, estimate_tool, is_estimate, model_text

if TYPE_CHECKING:
    from shared.catalog import Encoding, ToolDefinition

COLUMNS = ("wire", *PROFILES)


@dataclass(frozen=True, slots=True)
class Cost:
    """The number of some tools, and their tokens by column; `uncounted` tools are in no sum of tokens."""

    tools: int
    tokens: Mapping[str, int]
    uncounted: int = 0


def cost_of(server_id: str, definitions: Iterable[ToolDefinition], encoding: Encoding) -> Cost:
    """Return the cost of a server's tools."""
    tools, uncounted, tokens = 0, 0, Counter[str](dict.fromkeys(COLUMNS, 0))
    for definition in definitions:
        tools += 1
        try:
            tokens.update(_tokens(server_id, definition, encoding))
        except CountFailed:
            uncounted += 1
    return Cost(tools, dict(tokens), uncounted)


def own_cost(encoding: Encoding) -> Cost:
    """Return the cost of the `tools/list` of Toolscale itself."""
    return cost_of("toolscale", builtin_definitions(), encoding)


def total_of(costs: Iterable[Cost]) -> Cost:
    """Return the sum of these costs."""
    costs = list(costs)
    tokens = {column: sum(cost.tokens[column] for cost in costs) for column in COLUMNS}
    return Cost(sum(cost.tools for cost in costs), tokens, sum(cost.uncounted for cost in costs))


def _tokens(server_id: str, definition: ToolDefinition, encoding: Encoding) -> dict[str, int]:
    if is_estimate(encoding):
        return dict.fromkeys(COLUMNS, estimate_tool(server_id, definition))
    texts = {"wire": definition.wire} | {profile: model_text(definition, profile) for profile in PROFILES}
    count = counter(encoding)
    return {column: count(text) for column, text in texts.items()}
