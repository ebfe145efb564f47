"""The answer of `find_tool` within its budget: definitions, else summaries, else names, and as many as fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING

import structlog

from query.paging.budget import MAX_TOKEN_CHARACTERS, Budget, json_text
from query.paging.fitting import most_that_fit
from query.paging.policy import OnTruncated, ignore_truncation
from query.response.find_response import DetailLevel, FindResponse, FoundTool, to_found_tool, warnings
from query.response.pages import TOOL
from query.response.timings import Timings
from query.savings.savings import Baseline, TokenMetrics, token_metrics
from query.search.search import Hit
from shared.catalog import Encoding, IndexedTool, point_id
from shared.errors import BudgetTooSmall

if TYPE_CHECKING:
    from shared.settings import ResponseMode

# As long, and as many tokens, as a cursor commonly has: to measure with, where the true one is not made yet.
_LIKE_A_CURSOR = "q7Zk0XvB3nTfYw9LrD5sHcJ2mPgA8eUo4iKxVb1NtQyRz6WlSdFhGjMpCaEuOvIkB0nXw5T3YZ"

_NOWHERE = Timings(0.0, 0.0, 0.0, 0.0)

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found, before it is decided how it is shown.

    `hits` are what fits, else `nearest` names what came closest; `is_all` says that no further tools were found.
    `spent` are sentences on the caller's own budget, which may have left hits out.
    """

    hits: Sequence[Hit]
    nearest: Sequence[str]
    is_all: bool
    baseline: Baseline
    encoding: Encoding
    keywords_only: bool
    being_listed: int
    being_filled: bool
    stale_since: Callable[[str], float | None]
    cursor_after: Callable[[Sequence[str]], str]
    budget_warnings: Sequence[str] = ()


def within_budget(
    result: SearchResult, mode: ResponseMode, budget: Budget, on_truncated: OnTruncated = ignore_truncation
) -> FindResponse:
    """Return the answer as the mode says, in a shorter form or with fewer tools where the budget demands it.

    Raises:
        BudgetTooSmall: not even one tool's name fits.
        CursorsUnavailable: the cursor to the next page cannot be made now.
    """
    fitter = _ResponseFitter(result, budget, on_truncated)
    if not result.hits:
        return fitter.without_tools()
    for detail, min_tools in _detail_levels(mode, len(result.hits)):
        response = fitter.fit_most(detail, min_tools, is_requested=detail == mode or detail == "detailed")
        if response is not None:
            return response
    raise BudgetTooSmall(f"max_tokens: {budget.max_tokens} are too few for the next tool; ask for more")


def _detail_levels(mode: ResponseMode, hits: int) -> list[tuple[DetailLevel, int]]:
    """Return the forms to try, each with the number of tools that it must hold to be taken."""
    shorter: list[tuple[DetailLevel, int]] = [("summary", 1), ("name", 1)]
    if mode == "summary":
        return shorter
    return [("detailed", hits if mode == "auto" else 1), *shorter]


@dataclass(frozen=True, slots=True)
class _ResponseFitter:
    """The findings, to be shown within a budget."""

    result: SearchResult
    budget: Budget
    on_truncated: OnTruncated

    def fit_most(self, detail: DetailLevel, min_tools: int, *, is_requested: bool) -> FindResponse | None:
        """Return the answer with the most tools of this form that fits; None where they are too few."""
        limit = self._limit() if detail == "detailed" else len(self.result.hits)
        if limit < min_tools:
            return None
        response = self._response(detail, limit, is_requested=is_requested)
        if self._fits(response):
            return self._counted(response, detail, is_requested=is_requested)
        # measured with a stand-in: a true cursor may have to be kept
        count = most_that_fit(
            limit - 1,
            lambda n: self._fits(self._response(detail, n, is_requested=is_requested, cursor=_LIKE_A_CURSOR)),
        )
        for fewer in range(count, min_tools - 1, -1):
            response = self._response(detail, fewer, is_requested=is_requested)
            if self._fits(response):
                return self._counted(response, detail, is_requested=is_requested)
        return None

    def without_tools(self) -> FindResponse:
        """Return the answer where nothing fits the question, with as many of the nearest as there is room for."""
        names = self.result.nearest
        count = most_that_fit(len(names), lambda n: self._fits(self._nothing(names[:n])))
        return self._nothing(names[:count])

    def _limit(self) -> int:
        """Return how many definitions may fit, by their counts alone: nothing of a huge one is read."""
        sums = accumulate(_min_tokens(hit.tool, self.result.encoding) for hit in self.result.hits)
        return sum(1 for _ in takewhile(lambda tokens: tokens <= self.budget.max_tokens, sums))

    def _fits(self, response: FindResponse) -> bool:
        return self.budget.admits(json_text(response.as_object()))

    def _response(
        self, detail: DetailLevel, count: int, *, is_requested: bool, cursor: str | None = None
    ) -> FindResponse:
        result, hits = self.result, self.result.hits[:count]
        tools = [self._found_tool(hit, detail) for hit in hits]
        is_all = result.is_all and count == len(result.hits)
        points = [point_id(hit.tool.server_id, hit.tool.definition.name) for hit in hits]
        return FindResponse(
            tools=tools,
            keywords_only=result.keywords_only or None,
            token_metrics=self._metrics(detail, hits, sum(tool.shown_tokens for tool in tools)),
            warnings=self._warnings(tools, self._truncation_warning(detail, count, is_requested=is_requested)),
            nextCursor=None if is_all else cursor or result.cursor_after(points),
            timings=_NOWHERE,
        )

    def _nothing(self, nearest: Sequence[str]) -> FindResponse:
        no_match = bool(self.result.nearest)
        return FindResponse(
            tools=[],
            no_match=no_match or None,
            nearest=list(nearest) if no_match else None,
            keywords_only=self.result.keywords_only or None,
            token_metrics=self._metrics("name" if no_match else "detailed", [], 0),
            warnings=self._warnings([], "", no_match=no_match),
            nextCursor=self.result.cursor_after([]) if self.result.budget_warnings and not self.result.is_all else None,
            timings=_NOWHERE,
        )

    def _found_tool(self, hit: Hit, detail: DetailLevel) -> FoundTool:
        """Return a hit in this form, with what that costs."""
        result, count = self.result, self.budget.count
        stale_since = result.stale_since(hit.tool.server_id)
        tool = to_found_tool(hit.tool, hit.score, stale_since, result.encoding, detail)
        if detail == "detailed":
            return tool.model_copy(update={"shown_tokens": tool.token_count or 0})
        text = hit.tool.qualified_name if detail == "name" else tool.summary or ""
        return tool.model_copy(update={"shown_tokens": count(text)})

    def _metrics(self, detail: DetailLevel, hits: Sequence[Hit], shown_tokens: int) -> TokenMetrics:
        result = self.result
        tokens = None if detail == "detailed" else shown_tokens
        metrics = token_metrics(result.baseline, [hit.tool for hit in hits], result.encoding, tokens)
        return metrics.model_copy(update={"uncounted": []}) if detail == "name" else metrics

    def _warnings(self, tools: Sequence[FoundTool], truncation: str, *, no_match: bool = False) -> list[str]:
        result = self.result
        return warnings(
            tools,
            no_match=no_match,
            keywords_only=result.keywords_only,
            being_listed=result.being_listed,
            being_filled=result.being_filled,
            truncation=truncation,
            budget_warnings=result.budget_warnings,
        )

    def _truncation_warning(self, detail: DetailLevel, count: int, *, is_requested: bool) -> str:
        """Return what to say of an answer that is shorter than was asked for; nothing, where it is not."""
        kept_short = f"to stay within {self.budget.max_tokens} tokens"
        if detail == "name":
            return f"Names only, {kept_short}."
        fewer = count < len(self.result.hits)
        if not is_requested:
            return f"Summaries, {kept_short}; describe_tool has the definitions."
        return f"Only {count} of {len(self.result.hits)} tools, {kept_short}." if fewer else ""

    def _counted(self, response: FindResponse, detail: DetailLevel, *, is_requested: bool) -> FindResponse:
        shown, hits = len(response.tools), len(self.result.hits)
        if shown < hits or not is_requested or detail == "name":
            shown_as = detail if shown == hits else "page"
            _log.warning("response_truncated", tool=TOOL, form=shown_as, max_tokens=self.budget.max_tokens)
            self.on_truncated(TOOL, shown_as)
        return response


def _min_tokens(tool: IndexedTool, encoding: Encoding) -> int:
    counted = tool.token_counts.get(encoding)
    return len(tool.definition.wire) // MAX_TOKEN_CHARACTERS if counted is None else counted
