"""Find the tools a task needs, and say what that saved: the read side's main path.

request ─▶ steps ─▶ embed ─▶ search, one round trip ─▶ fuse and rank ─▶ merge ─▶ does it fit? ─▶ what it saved
"""

from __future__ import annotations

from collections.abc import Sequence

from query.abstain import is_close, is_covered
from query.answer import FindAnswer, found, warnings
from query.catalogue import Catalogue
from query.request import FindRequest
from query.savings import token_metrics
from query.search import Found, Hit, best, search
from query.steps import embed_steps
from query.timings import Stopwatch, Timings
from shared.catalog import Scope


def find_tool(request: FindRequest, allowed: Scope, catalogue: Catalogue) -> FindAnswer:
    """Return the allowed tools that fit the request, and the tokens saved against all of the same scope.

    Where none fits, none is returned, and the nearest are named. Without a model, keywords alone decide.

    Raises:
        IndexUnavailable: the index did not answer; nothing was found or counted.
    """
    stopwatch, catalogue = Stopwatch(), catalogue.pinned()
    scope, index, ledger, encoding = request.within(allowed), catalogue.index, catalogue.ledger, catalogue.encoding
    steps = embed_steps(request.steps, catalogue.embedder)
    embed_ms = stopwatch.lap_ms()

    results = search(steps, scope, index)
    nearest = best(results, request.limit, index)
    hits = nearest if _fits(results, nearest, catalogue.no_match_below) else []
    search_ms = stopwatch.lap_ms()

    metrics = token_metrics(ledger.baseline(scope, encoding), [hit.tool for hit in hits], encoding)
    sum_ms = stopwatch.lap_ms()

    tools = [found(hit.tool, hit.score, ledger.stale_since(hit.tool.server_id), encoding) for hit in hits]
    no_match = bool(nearest) and not hits
    coming = ledger.being_listed(scope)
    keywords_only = any(step.whole.dense is None for step in steps)
    return FindAnswer(
        tools=tools,
        no_match=no_match or None,
        nearest=[hit.tool.qualified_name for hit in nearest] if no_match else None,
        keywords_only=keywords_only or None,
        token_metrics=metrics,
        warnings=warnings(tools, no_match=no_match, keywords_only=keywords_only, being_listed=coming),
        timings=Timings(embed_ms, search_ms, sum_ms),
    )


def _fits(results: Sequence[Found], nearest: Sequence[Hit], no_match_below: float) -> bool:
    """Return whether any step found a tool by its name, by meaning, or by most of its words."""
    return any(
        each.named
        or is_close(each.candidates, no_match_below)
        or is_covered(each.step.whole, [hit.tool for hit in nearest])
        for each in results
    )
