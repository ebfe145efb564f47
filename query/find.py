"""Find the tools a task needs, and say what that saved: the read side's main path.

request ─▶ steps ─▶ embed ─▶ search, one round trip ─▶ fuse and rank ─▶ merge ─▶ does it fit? ─▶ what it saved
─▶ within the budget
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from query.caller import ANYONE, Caller
from query.catalogue import Catalogue
from query.response.find_response import FindResponse
from query.response.fit import SearchResult, within_budget
from query.response.pages import SearchPages
from query.response.timings import Stopwatch, Timings
from query.savings.savings import saved_by_server
from query.search.no_match import is_covered, is_similar
from query.search.request import FindRequest
from query.search.search import Hit, StepResult, hits, ranking, search
from query.search.steps import embed_steps
from query.toolsets.budget import apply_budget
from shared.catalog import Scope, point_id

# Tools by which it is judged whether any fits, so that one who asks for fewer is not told that none does.
MATCH_CANDIDATES = 8


def find_tool(request: FindRequest, allowed: Scope, catalogue: Catalogue, caller: Caller = ANYONE) -> FindResponse:
    """Return the allowed tools that fit the request, and the tokens saved against all of the same scope.

    Where none fits, none is returned, and the nearest are named. Without a model, keywords alone decide. The answer
    is within the tokens of the request, and its cursor, good for the same caller and question, leads to further tools.

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
    remaining = pages.remaining(ranking(step_results))
    closest = hits(remaining[: max(request.limit, MATCH_CANDIDATES)], step_results, index)
    # whether anything fits was decided on the first page
    is_match = request.cursor is not None or _has_match(step_results, closest, catalogue)
    nearest = closest[: request.limit]
    budget_result = apply_budget([hit.tool for hit in nearest if is_match], caller, encoding)
    excluded = [point_id(tool.server_id, tool.definition.name) for tool in budget_result.excluded]
    search_ms = stopwatch.lap_ms("search index")

    baseline = ledger.baseline(scope, encoding)
    sum_ms = stopwatch.lap_ms("sum baseline")

    result = SearchResult(
        hits=[hit for hit in nearest if hit.tool in budget_result.kept],
        nearest=[] if is_match else [hit.tool.qualified_name for hit in nearest],
        is_all=len(remaining) <= request.limit,
        baseline=baseline,
        encoding=encoding,
        keywords_only=any(step.whole.dense is None for step in steps),
        being_listed=ledger.being_listed(scope),
        being_filled=not remaining and request.cursor is None and not catalogue.is_complete(),
        stale_since=ledger.stale_since,
        cursor_after=lambda points: pages.cursor([*points, *excluded]),
        budget_warnings=budget_result.warnings,
    )
    budget = policy.budget(request.max_tokens, encoding)
    response = within_budget(result, request.detail or policy.mode, budget, policy.on_truncated)
    timings = Timings(embed_ms, search_ms, sum_ms, stopwatch.lap_ms("fit answer"))
    saved = saved_by_server(baseline, _shown_by_server(response), response.token_metrics.tokens_saved)
    extra_fields = {"timings": timings, "baseline_tools": baseline.tools, "saved_by_server": saved}
    return response.model_copy(update=extra_fields)


def _shown_by_server(response: FindResponse) -> dict[str, int]:
    """Return what each server's tools cost as the answer shows them."""
    tokens: Counter[str] = Counter()
    for tool in response.tools:
        tokens[tool.server] += tool.shown_tokens
    return tokens


def _has_match(step_results: Sequence[StepResult], nearest: Sequence[Hit], catalogue: Catalogue) -> bool:
    """Return whether any step found a tool by its name, by meaning, or by most of its words."""
    return any(
        step_result.named
        or is_similar(step_result.step.whole, step_result.candidates, catalogue.embedder, catalogue.no_match_threshold)
        or is_covered(step_result.step.whole, [hit.tool for hit in nearest])
        for step_result in step_results
    )
