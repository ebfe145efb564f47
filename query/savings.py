"""Tokens saved against a client that loads every tool of its scope. Pure arithmetic, no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

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

    def without(self, offered: Baseline) -> Baseline:
        """Return the cost of the tools of this scope that are not among the offered ones."""
        return replace(
            self,
            tokens=max(0, self.tokens - offered.tokens),
            tools=max(0, self.tools - offered.tools),
            model_tokens=max(0, self.model_tokens - offered.model_tokens),
        )

    def stated_before(self) -> Baseline:
        """Return the baseline of a further page: the first page has stated the net of all tools."""
        return replace(self, model_tokens=0)


Count = Annotated[int, Field(ge=0)]


class TokenMetrics(BaseModel):
    """The tokens of the tools that a caller would carry, of those returned, and of the answer."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    baseline_tokens: Count
    """Definitions of all tools that you may see, without those in your tools/list; at least returned_tokens."""
    returned_tokens: Count
    """Definitions of the returned tools, or the summaries or names in their place."""
    tokens_saved: Count
    """baseline_tokens - returned_tokens."""
    savings_percentage: Annotated[float, Field(ge=0, le=100)]
    answer_tokens: Count
    """This answer's text."""
    net_tokens_saved: int
    """Name, description and input schema of the baseline's tools, on the first page, less answer_tokens."""
    encoding: Encoding
    estimated: bool
    """True: the counts are estimates."""
    uncounted: list[str]
    """Some of the tools that could not be counted and are in no sum, as server:tool."""
    uncounted_total: Count

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if self.tokens_saved != self.baseline_tokens - self.returned_tokens:
            raise ValueError("tokens_saved: expected baseline_tokens - returned_tokens")
        return self

    def net_of(self, answer_tokens: int) -> int:
        """Return the net tokens saved by an answer of this many tokens."""
        return self.net_tokens_saved + self.answer_tokens - answer_tokens

    def with_answer_tokens(self, answer_tokens: int) -> TokenMetrics:
        """Return the metrics of an answer of this many tokens."""
        update = {"answer_tokens": answer_tokens, "net_tokens_saved": self.net_of(answer_tokens)}
        return self.model_copy(update=update)


def token_metrics(
    baseline: Baseline, returned: Sequence[IndexedTool], encoding: Encoding, shown_tokens: int | None = None
) -> TokenMetrics:
    """Return the savings of an answer whose own tokens are not counted yet.

    `shown_tokens` is what the tools cost as they are shown; None: they are shown with their definitions.
    The returned tokens bound the baseline from below. They exceed it where the returned tools are offered directly.
    They also do between a server's two writes, of its tools and of its record. The savings are then 0.
    """
    definitions = sum(tool.token_counts.get(encoding, 0) for tool in returned)
    returned_tokens = definitions if shown_tokens is None else shown_tokens
    baseline_tokens = max(baseline.tokens, returned_tokens)
    saved = baseline_tokens - returned_tokens
    uncounted = _uncounted(baseline, returned, encoding)
    return TokenMetrics(
        baseline_tokens=baseline_tokens,
        returned_tokens=returned_tokens,
        tokens_saved=saved,
        savings_percentage=_percentage(saved, baseline_tokens),
        answer_tokens=0,
        net_tokens_saved=baseline.model_tokens,
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
