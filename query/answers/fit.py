"""The answer of `find_tool` within its budget: definitions, else summaries, else names, and as many as fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Any

import structlog
from pydantic import BaseModel, ConfigDict, Field

from query.answers.budget import MAX_TOKEN_CHARACTERS, Budget, most_that_fit
from query.answers.detail import DetailLevel, FoundTool, to_found_tool
from query.savings import Baseline, TokenMetrics, token_metrics
from shared.errors import BudgetTooSmall
from shared.text.tokens import Counter, json_text

if TYPE_CHECKING:
    from query.replicas import Serving
    from query.search.search import Hit
    from shared.catalog import Encoding, Form, IndexedTool
    from shared.settings import ResponseMode

# The levels that a mode tries, in order. With "auto", definitions are shown only if all of them fit.
_LEVELS: Mapping[ResponseMode, tuple[DetailLevel, ...]] = {
    "auto": ("detailed", "summary", "name"),
    "detailed": ("detailed", "summary", "name"),
    "full": ("full", "summary", "name"),
    "summary": ("summary", "name"),
}

TOOL = "find_tool"
# A guess at the tokens of an answer without tools; with a good guess, an answer is counted once.
FEW_TOKENS = 300

_log = structlog.get_logger()


class FindResponse(BaseModel):
    """The best tools first, what they saved, and what the caller should know about them."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    tools: list[FoundTool]
    no_match: bool | None = None
    """True: no tool fits well enough to be returned."""
    nearest: list[str] | None = None
    """With no_match: the closest tools, as server:tool."""
    keywords_only: bool | None = None
    """True: searched without the embedding model."""
    token_metrics: TokenMetrics
    warnings: list[str]
    next_cursor: str | None = Field(default=None, alias="nextCursor")
    """More tools: ask the same again with it as cursor."""

    def as_object(self) -> dict[str, Any]:
        """Return the JSON object to send, without fields that are None."""
        return self.model_dump(mode="json", exclude_none=True, by_alias=True)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search, independent of the detail level.

    `serving` has the servers of each hit by its qualified name. `is_all`: there are no tools behind the hits.
    `nearest` are names of tools that do not fit, where none does. `warnings` concern the search, and `budget_warnings`,
    which come last in a response, the caller's own budget. `cursor` leads to the tools behind those of the response;
    None: it could not be stored.
    """

    hits: Sequence[Hit]
    serving: Mapping[str, Serving]
    is_all: bool
    baseline: Baseline
    encoding: Encoding
    cursor: str | None
    nearest: Sequence[str] = ()
    keywords_only: bool = False
    warnings: Sequence[str] = ()
    budget_warnings: Sequence[str] = ()


def within_budget(result: SearchResult, mode: ResponseMode, budget: Budget) -> FindResponse:
    """Return the response at the mode's detail level, or shorter where the budget requires it.

    Raises:
        BudgetTooSmall: not even one tool's name fits.
    """
    if not result.hits:
        return _without_tools(result, budget)
    for detail in _LEVELS[mode]:
        min_tools = len(result.hits) if (mode, detail) == ("auto", "detailed") else 1
        limit = _affordable(result, detail, budget)
        if limit < min_tools:
            continue
        level = _Level.of(result, budget, detail, limit, is_requested=detail in (mode, "detailed"))
        response = level.most(min_tools)
        if response is not None:
            shown = len(response.tools)
            if level.truncation(shown):
                form = detail if shown == len(result.hits) else "page"
                _log.warning("response_truncated", tool=TOOL, form=form, max_tokens=budget.max_tokens)
            return response
    raise BudgetTooSmall(f"max_tokens: {budget.max_tokens} are too few for the next tool; ask for more")


@dataclass(frozen=True, slots=True)
class _Level:
    """The first tools of a result at one detail level, each with its tokens as shown."""

    result: SearchResult
    budget: Budget
    detail: DetailLevel
    is_requested: bool
    tools: Sequence[FoundTool]
    shown_tokens: Sequence[int]

    @classmethod
    def of(cls, result: SearchResult, budget: Budget, detail: DetailLevel, limit: int, *, is_requested: bool) -> _Level:
        """Return the first `limit` hits at this detail level."""
        tools: list[FoundTool] = []
        shown_tokens: list[int] = []
        for hit in result.hits[:limit]:
            serving, encoding = result.serving[hit.tool.qualified_name], result.encoding
            tool = to_found_tool(hit.tool, serving, hit.score, encoding, detail)
            tools.append(tool)
            if detail in ("full", "detailed"):
                shown_tokens.append(hit.tool.token_counts.get(encoding, 0))
            else:
                shown_tokens.append(budget.count(tool.name if detail == "name" else tool.summary or ""))
        return cls(result, budget, detail, is_requested, tools, shown_tokens)

    def most(self, min_tools: int) -> FindResponse | None:
        """Return the response with the most tools that fits; None where fewer than `min_tools` fit."""
        response = cache(self.response)  # the one that fits was counted to find that it does
        count = most_that_fit(len(self.tools), lambda count: _fits(response(count), self.budget))
        return response(count) if count >= min_tools else None

    def response(self, count: int) -> FindResponse:
        """Return the response with the first `count` tools."""
        result, tools = self.result, list(self.tools[:count])
        shown = [hit.tool for hit in result.hits[:count]]
        metrics = token_metrics(result.baseline, shown, result.encoding, sum(self.shown_tokens[:count]))
        is_all = result.is_all and count == len(result.hits)
        response = FindResponse(
            tools=tools,
            keywords_only=result.keywords_only or None,
            token_metrics=metrics.model_copy(update={"uncounted": []}) if self.detail == "name" else metrics,
            warnings=[*result.warnings, *self._staleness(shown), *self.truncation(count), *result.budget_warnings],
            nextCursor=None if is_all else result.cursor,
        )
        return counted(response, self.budget.count)

    def _staleness(self, shown: Sequence[IndexedTool]) -> list[str]:
        stale = {tool.server_id for tool in shown if self.result.serving[tool.qualified_name].stale_since is not None}
        names = ", ".join(sorted(stale))
        return [f"Tools of {names} may be out of date: their servers did not answer."] if stale else []

    def truncation(self, count: int) -> list[str]:
        """Return a warning if a response with `count` tools is shorter than the caller requested."""
        kept_short, hits = f"to stay within {self.budget.max_tokens} tokens", len(self.result.hits)
        if self.detail == "name":
            return [f"Names only, {kept_short}."]
        if not self.is_requested:
            return [f"Summaries, {kept_short}; describe_tool has the definitions."]
        return [f"Only {count} of {hits} tools, {kept_short}."] if count < hits else []


def _without_tools(result: SearchResult, budget: Budget) -> FindResponse:
    """Return the response without tools, with as many of the nearest names as fit."""
    metrics = token_metrics(result.baseline, [], result.encoding)
    # tools that the budget excludes may be followed by some that it admits
    has_more = bool(result.budget_warnings) and not result.is_all
    next_cursor = result.cursor if has_more else None

    @cache
    def response(count: int) -> FindResponse:
        has_nearest = bool(result.nearest)
        empty = FindResponse(
            tools=[],
            no_match=has_nearest or None,
            nearest=list(result.nearest[:count]) if has_nearest else None,
            keywords_only=result.keywords_only or None,
            token_metrics=metrics.model_copy(update={"uncounted": []}) if has_nearest else metrics,
            warnings=[*result.warnings, *result.budget_warnings],
            nextCursor=next_cursor,
        )
        return counted(empty, budget.count)

    return response(most_that_fit(len(result.nearest), lambda count: _fits(response(count), budget)))


def _affordable(result: SearchResult, detail: DetailLevel, budget: Budget) -> int:
    """Return how many hits may fit; definitions by their token counts, so that no huge one is parsed."""
    if detail not in ("full", "detailed"):
        return len(result.hits)
    form: Form = "wire" if detail == "full" else "model"
    counts = (
        hit.tool.counts(form).get(result.encoding, len(hit.tool.definition.wire) // MAX_TOKEN_CHARACTERS)
        for hit in result.hits
    )
    return sum(1 for _ in takewhile(lambda tokens: tokens <= budget.max_tokens, accumulate(counts)))


def _fits(response: FindResponse, budget: Budget) -> bool:
    return response.token_metrics.answer_tokens <= budget.max_tokens


def counted(response: FindResponse, count: Counter) -> FindResponse:
    """Return the response with the tokens of its JSON text, the digits of this number and of the net included.

    The tokens of a number depend on its sign and on how many digits it has, so one count is mostly enough.
    If no number equals the tokens of the text that contains it, the response contains the larger of the two.
    """
    answer, metrics = response.as_object(), response.token_metrics

    def text(tokens: int) -> str:
        answer["token_metrics"] |= {"answer_tokens": tokens, "net_tokens_saved": metrics.net_of(tokens)}
        return json_text(answer)

    def shape(tokens: int) -> tuple[int, bool, int]:
        net = metrics.net_of(tokens)
        return len(str(tokens)), net < 0, len(str(net))

    # an answer has a few more tokens than its tools, and some hundred without any
    tried = [max(metrics.returned_tokens, FEW_TOKENS)]
    while (tokens := count(text(tried[-1]))) not in tried and shape(tokens) != shape(tried[-1]):
        tried.append(tokens)
    tokens = tokens if tokens not in tried else max(tried[tried.index(tokens) :])
    return response.model_copy(update={"token_metrics": metrics.with_answer_tokens(tokens)})
