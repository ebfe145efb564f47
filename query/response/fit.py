"""The response of `find_tool` within its budget: definitions, else summaries, else names, and as many as fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING

import structlog

from query.answers.budget import MAX_TOKEN_CHARACTERS, Budget, most_that_fit
from query.replicas.serving import Serving
from query.response.answer_tokens import counted
from query.response.find_response import DetailLevel, FindResponse, FoundTool, stale_warnings, to_found_tool
from query.savings.savings import Baseline, token_metrics
from query.search.search import Hit
from shared.catalog import Encoding, Form, IndexedTool
from shared.errors import BudgetTooSmall

if TYPE_CHECKING:
    from shared.settings import ResponseMode

# The levels that a mode tries, in order. With "auto", definitions are shown only if all of them fit.
_LEVELS: Mapping[ResponseMode, tuple[DetailLevel, ...]] = {
    "auto": ("detailed", "summary", "name"),
    "detailed": ("detailed", "summary", "name"),
    "full": ("full", "summary", "name"),
    "summary": ("summary", "name"),
}

TOOL = "find_tool"

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search, independent of the detail level.

    `serving` has the servers of each hit by its definition's id.
    `empty` is the response without any tool. `is_all` means that the search found no tools behind the hits.
    `cursor` leads to the tools behind those of the response; None: it could not be stored.
    `budget_warnings` come last in a response; they concern the caller's own budget.
    `has_leaner_definitions` is the policy's: the detail `detailed` has shorter input schemas.
    """

    hits: Sequence[Hit]
    is_all: bool
    empty: FindResponse
    baseline: Baseline
    encoding: Encoding
    stale_since: Callable[[str], float | None]
    serving: Mapping[str, Serving]
    cursor: str | None
    budget_warnings: Sequence[str] = ()
    has_leaner_definitions: bool = False

    def stale_of(self, tool: IndexedTool) -> float | None:
        """Return since when no server of this tool could be listed, in seconds since the epoch; None: one could."""
        moments = [self.stale_since(server_id) for server_id in self.serving[tool.qualified_name].servers]
        return None if None in moments else max(moment for moment in moments if moment is not None)


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
        level = _level(result, detail, limit, budget, is_requested=detail in (mode, "detailed"))
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
    """The tools of a result at one detail level, each with its tokens as shown."""

    result: SearchResult
    budget: Budget
    detail: DetailLevel
    is_requested: bool
    tools: Sequence[FoundTool]
    shown_tokens: Sequence[int]

    def most(self, min_tools: int) -> FindResponse | None:
        """Return the response with the most tools that fits; None where fewer than `min_tools` fit."""
        count = most_that_fit(len(self.tools), lambda count: _fits(self.response(count), self.budget))
        return self.response(count) if count >= min_tools else None

    def response(self, count: int) -> FindResponse:
        """Return the response with the first `count` tools."""
        result, tools = self.result, list(self.tools[:count])
        shown = [hit.tool for hit in result.hits[:count]]
        metrics = token_metrics(result.baseline, shown, result.encoding, sum(self.shown_tokens[:count]))
        stale = {tool.server_id for tool in shown if result.stale_of(tool) is not None}
        warnings = [*result.empty.warnings, *stale_warnings(stale), *self.truncation(count), *result.budget_warnings]
        is_all = result.is_all and count == len(result.hits)
        response = result.empty.model_copy(
            update={
                "tools": tools,
                "token_metrics": metrics.model_copy(update={"uncounted": []}) if self.detail == "name" else metrics,
                "warnings": warnings,
                "next_cursor": None if is_all else result.cursor,
            }
        )
        return counted(response, self.budget.count)

    def truncation(self, count: int) -> list[str]:
        """Return a warning if a response with `count` tools is shorter than the caller requested."""
        kept_short, hits = f"to stay within {self.budget.max_tokens} tokens", len(self.result.hits)
        if self.detail == "name":
            return [f"Names only, {kept_short}."]
        if not self.is_requested:
            return [f"Summaries, {kept_short}; describe_tool has the definitions."]
        return [f"Only {count} of {hits} tools, {kept_short}."] if count < hits else []


def _level(result: SearchResult, detail: DetailLevel, limit: int, budget: Budget, *, is_requested: bool) -> _Level:
    """Return the first `limit` hits at this detail level."""
    tools: list[FoundTool] = []
    shown_tokens: list[int] = []
    has_definitions = detail in ("full", "detailed")
    for hit in result.hits[:limit]:
        serving = result.serving[hit.tool.qualified_name]
        tool = to_found_tool(
            hit.tool,
            serving,
            hit.score,
            result.stale_of(hit.tool),
            result.encoding,
            detail,
            is_leaner=result.has_leaner_definitions,
        )
        text = tool.name if detail == "name" else tool.summary or ""
        tools.append(tool)
        tokens = hit.tool.token_counts.get(result.encoding, 0) if has_definitions else budget.count(text)
        shown_tokens.append(tokens)
    return _Level(result, budget, detail, is_requested, tools, shown_tokens)


def _without_tools(result: SearchResult, budget: Budget) -> FindResponse:
    """Return the response without tools, with as many of the nearest names as fit."""
    has_more = bool(result.budget_warnings) and not result.is_all
    update: dict[str, object] = {"next_cursor": result.cursor if has_more else None}
    empty = result.empty.model_copy(update={"warnings": [*result.empty.warnings, *result.budget_warnings], **update})
    if empty.nearest is None:
        return counted(empty, budget.count)
    names = empty.nearest

    @cache
    def response(count: int) -> FindResponse:
        return counted(empty.model_copy(update={"nearest": names[:count]}), budget.count)

    return response(most_that_fit(len(names), lambda count: _fits(response(count), budget)))


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
