"""Find the tools that a task needs, and count the tokens saved: the main path of the query service.

request ─▶ steps ─▶ embed ─▶ search, one round trip ─▶ fuse and rank ─▶ merge ─▶ match?
        ─▶ context budget (apply_budget) ─▶ baseline ─▶ token budget (within_budget) ─▶ response
"""

from __future__ import annotations

from collections.abc import Sequence

from query.caller import ANYONE, Caller
from query.catalogue import Catalogue
from query.response.find_response import FindResponse, empty_response
from query.response.fit import SearchResult, within_budget
from query.response.pages import SearchPages
from query.response.timings import Stopwatch, Timings
from query.search.no_match import is_covered, is_similar
from query.search.request import FindRequest
from query.search.search import Hit, StepResult, hits, merged, search
from query.search.steps import embed_steps
from query.toolsets.budget import apply_budget
from query.toolsets.offered import OfferedCost, nothing_offered
from shared.catalog import IndexedTool, Scope, point_id

# The match is decided on at least so many tools, so that a small `limit` does not turn a match into none.
MATCH_CANDIDATES = 8


def find_tool(
    request: FindRequest,
    allowed: Scope,
    catalogue: Catalogue,
    caller: Caller = ANYONE,
    offered: OfferedCost = nothing_offered,
) -> tuple[FindResponse, Timings]:
    """Return the allowed tools that fit the request, and the tokens saved against all allowed tools.

    The request's filters do not change the baseline. The tools that the caller has in its `tools/list` are not in it.

    If no tool fits, the response has no tools and names the nearest. Without a model, the search uses keywords only.
    The response stays within the request's tokens. Its cursor leads this caller to more tools for the same question.

    Raises:
        IndexUnavailable: the index did not answer; nothing was found or counted.
        CursorInvalid: the cursor is not of this caller and question, was changed, or has expired.
        CursorsUnavailable: a cursor cannot be followed or made now.
        BudgetTooSmall: not even one tool's name fits into the tokens of the request.
    """
    stopwatch, catalogue = Stopwatch(), catalogue.pinned()
    scope, index, ledger, policy = request.narrow(allowed), catalogue.index, catalogue.ledger, catalogue.response_policy
    encoding = request.encoding or catalogue.encoding
    pages = SearchPages(policy.cursors, caller.name, request.question).after(request.cursor)
    steps = embed_steps(request.steps, catalogue.embedder)
    embed_ms = stopwatch.lap_ms("embed query")

    step_results = search(steps, scope, index)
    remaining = pages.remaining(merged(step_results))
    closest = hits(remaining[: max(request.limit, MATCH_CANDIDATES)], step_results, index)
    # the first page has decided whether any tool fits
    is_match = request.cursor is not None or _has_match(step_results, closest, catalogue)
    nearest = closest[: request.limit]
    budget_result = apply_budget([hit.tool for hit in nearest if is_match], caller, catalogue.encoding)
    search_ms = stopwatch.lap_ms("search index")

    baseline = ledger.baseline(allowed, encoding).without(offered(caller, encoding))
    if request.cursor is not None:
        baseline = baseline.stated_before()
    sum_ms = stopwatch.lap_ms("sum baseline")

    kept = [hit for hit in nearest if hit.tool in budget_result.kept]
    empty = empty_response(
        baseline,
        encoding,
        has_hits=bool(kept),
        nearest=[] if is_match else [hit.tool.qualified_name for hit in nearest],
        keywords_only=any(step.whole.dense is None for step in steps),
        being_listed=ledger.being_listed(scope),
        being_filled=not remaining and request.cursor is None and not catalogue.is_complete(),
        budget_warnings=budget_result.warnings,
    )
    result = SearchResult(
        hits=kept,
        is_all=len(remaining) <= request.limit,
        empty=empty,
        baseline=baseline,
        encoding=encoding,
        stale_since=ledger.stale_since,
        cursor_after=lambda shown: pages.cursor(_points([*shown, *budget_result.excluded])),
        budget_warnings=budget_result.warnings,
    )
    budget = policy.budget(request.max_tokens, encoding)
    response = within_budget(result, request.detail or policy.mode, budget, policy.on_truncated)
    return response, Timings(embed_ms, search_ms, sum_ms, stopwatch.lap_ms("fit answer"))


def _has_match(step_results: Sequence[StepResult], closest: Sequence[Hit], catalogue: Catalogue) -> bool:
    """Return whether any step found a tool by its name, by meaning, or by most of its words."""
    return any(
        step_result.named
        or is_similar(step_result.step.whole, step_result.candidates, catalogue.embedder, catalogue.no_match_threshold)
        or is_covered(step_result.step.whole, [hit.tool for hit in closest])
        for step_result in step_results
    )


def _points(tools: Sequence[IndexedTool]) -> list[str]:
    return [point_id(tool.server_id, tool.definition.name) for tool in tools]
