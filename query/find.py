"""Find the tools a task needs, and say what that saved: the read side's main path.

request ─▶ steps ─▶ embed ─▶ search, one round trip ─▶ fuse and rank ─▶ merge ─▶ does it fit? ─▶ what it saved
─▶ within the budget
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from query.caller import ANYONE, Caller
from query.catalogue import Catalogue
from query.response.find_response import FindAnswer
from query.response.fit import Findings, within_budget
from query.response.pages import Pages
from query.response.timings import Stopwatch, Timings
from query.savings.savings import saved_by_server
from query.search.no_match import is_close, is_covered
from query.search.request import FindRequest
from query.search.search import Found, Hit, hits, ranking, search
from query.search.steps import embed_steps
from query.toolsets.budget import spend
from shared.catalog import Scope, point_id

# Tools by which it is judged whether any fits, so that one who asks for fewer is not told that none does.
JUDGED = 8


def find_tool(request: FindRequest, allowed: Scope, catalogue: Catalogue, caller: Caller = ANYONE) -> FindAnswer:
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
    scope, index, ledger, answers = request.within(allowed), catalogue.index, catalogue.ledger, catalogue.answers
    encoding = request.encoding or catalogue.encoding
    pages = Pages(answers.cursors, caller.name, request.question).after(request.cursor)
    steps = embed_steps(request.steps, catalogue.embedder)
    embed_ms = stopwatch.lap_ms("embed query")

    results = search(steps, scope, index)
    remaining = pages.remaining(ranking(results))
    closest = hits(remaining[: max(request.limit, JUDGED)], results, index)
    # whether anything fits was decided on the first page
    is_match = request.cursor is not None or _fits(results, closest, catalogue)
    nearest = closest[: request.limit]
    spending = spend([hit.tool for hit in nearest if is_match], caller, encoding)
    left_out = [point_id(tool.server_id, tool.definition.name) for tool in spending.left_out]
    search_ms = stopwatch.lap_ms("search index")

    baseline = ledger.baseline(scope, encoding)
    sum_ms = stopwatch.lap_ms("sum baseline")

    findings = Findings(
        hits=[hit for hit in nearest if hit.tool in spending.kept],
        nearest=[] if is_match else [hit.tool.qualified_name for hit in nearest],
        is_all=len(remaining) <= request.limit,
        baseline=baseline,
        encoding=encoding,
        keywords_only=any(step.whole.dense is None for step in steps),
        being_listed=ledger.being_listed(scope),
        being_filled=not remaining and request.cursor is None and not catalogue.is_whole(),
        stale_since=ledger.stale_since,
        cursor_after=lambda points: pages.cursor([*points, *left_out]),
        spent=spending.warnings,
    )
    budget = answers.budget(request.max_tokens, encoding)
    answer = within_budget(findings, request.detail or answers.mode, budget, answers.cut)
    timings = Timings(embed_ms, search_ms, sum_ms, stopwatch.lap_ms("fit answer"))
    saved = saved_by_server(baseline, _shown_by_server(answer), answer.token_metrics.tokens_saved)
    told = {"timings": timings, "baseline_tools": baseline.tools, "saved_by_server": saved}
    return answer.model_copy(update=told)


def _shown_by_server(answer: FindAnswer) -> dict[str, int]:
    """Return what each server's tools cost as the answer shows them."""
    shown: Counter[str] = Counter()
    for tool in answer.tools:
        shown[tool.server] += tool.shown_tokens
    return shown


def _fits(results: Sequence[Found], nearest: Sequence[Hit], catalogue: Catalogue) -> bool:
    """Return whether any step found a tool by its name, by meaning, or by most of its words."""
    return any(
        each.named
        or is_close(each.step.whole, each.candidates, catalogue.embedder, catalogue.no_match_below)
        or is_covered(each.step.whole, [hit.tool for hit in nearest])
        for each in results
    )
