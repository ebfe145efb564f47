"""Tokens saved against a client that loads every tool of its scope. Pure arithmetic, no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from shared.catalog import Encoding, IndexedTool
from shared.text.tokens import is_estimate

UNCOUNTED_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Baseline:
    """The cost of all tools of a scope.

    `tokens` is the sum of the wire form and `model_tokens` that of the model form. `tools` is how many there are,
    counted or not. `uncounted` names at most UNCOUNTED_SHOWN of the `uncounted_total` tools that have no count and so
    are no part of `tokens`.
    """

    tokens: int
    tools: int
    uncounted: tuple[str, ...] = ()
    uncounted_total: int = 0
    model_tokens: int = 0


class TokenMetrics(BaseModel):
    """Tokens of all tools the caller may see, of those returned, and the difference. Never negative."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    baseline_tokens: int
    """Tokens of every tool in the catalogue that the caller may see."""
    returned_tokens: int
    """Tokens of the returned definitions, or of the summaries in their place."""
    tokens_saved: int
    """baseline_tokens - returned_tokens."""
    savings_percentage: float
    """0 to 100."""
    encoding: Encoding
    estimated: bool
    """True: the counts are estimates."""
    uncounted: list[str]
    """Some of the tools that could not be counted and are in neither sum, as server:tool."""
    uncounted_total: int


def token_metrics(
    baseline: Baseline, returned: Sequence[IndexedTool], encoding: Encoding, shown_tokens: int | None = None
) -> TokenMetrics:
    """Return the savings of an answer; all numbers are at least 0 and the percentage is within 0 to 100.

    `shown_tokens` is what the tools cost as they are shown; None: they are shown with their definitions.
    The returned tools lie within the scope, so their tokens bound the baseline from below. A server's tools and its
    record are two writes, and the search reads both one after the other. Between the writes, returned tools may be
    missing from the sum: the bound then replaces the baseline, and the savings are 0.
    """
    definitions = sum(tool.token_counts.get(encoding, 0) for tool in returned)
    returned_tokens = definitions if shown_tokens is None else shown_tokens
    baseline_tokens = max(baseline.tokens, definitions, returned_tokens)
    saved = baseline_tokens - returned_tokens
    uncounted = _uncounted(baseline, returned, encoding)
    return TokenMetrics(
        baseline_tokens=baseline_tokens,
        returned_tokens=returned_tokens,
        tokens_saved=saved,
        savings_percentage=_percentage(saved, baseline_tokens),
        encoding=encoding,
        estimated=is_estimate(encoding),
        uncounted=uncounted[:UNCOUNTED_SHOWN],
        uncounted_total=max(baseline.uncounted_total, len(uncounted)),
    )


def _uncounted(baseline: Baseline, returned: Sequence[IndexedTool], encoding: Encoding) -> list[str]:
    """Return known names without a count, each once; returned tools first, since the caller is looking at them."""
    in_answer = [tool.qualified_name for tool in returned if encoding not in tool.token_counts]
    return list(dict.fromkeys([*in_answer, *baseline.uncounted]))


def _percentage(part: int, whole: int) -> float:
    return round(100 * part / whole, 2) if whole else 0.0
