"""Find the tools that a task needs, and count the tokens saved: the main path of the query service.

request ─▶ steps ─▶ embed ─▶ baseline ─▶ search one replica of each set ─▶ fuse and rank ─▶ merge ─▶ match?
        ─▶ context budget (apply_budget) ─▶ servers of each tool ─▶ token budget (within_budget) ─▶ response
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import structlog

from query.answers.pages import SearchPages
from query.caller import ANYONE, Caller
from query.catalogue import Catalogue
from query.kept import new_name
from query.replicas.serving import Replicated, Serving, servings
from query.response.find_response import (
    FURTHER_LOST,
    NOTHING_FURTHER,
    NOTHING_HAS_WORDS,
    NOTHING_PASSES,
    NOTHING_VISIBLE,
    FindResponse,
    empty_response,
)
from query.response.fit import TOOL, SearchResult, within_budget
from query.response.timings import Stopwatch, Timings
from query.savings.savings import Baseline
from query.search.distinct import DistinctSearch
from query.search.exclude import excluded_definitions
from query.search.filters import filter_warnings
from query.search.no_match import is_match
from query.search.request import FindRequest
from query.search.search import Hit, StepResult
from query.search.steps import Step, embed_steps
from query.toolsets.budget import apply_budget
from query.toolsets.offered import OfferedCost, nothing_offered
from shared.catalog import Scope
from shared.errors import CursorsUnavailable

# The match is decided on at least so many tools, so that a small `limit` does not turn a match into none.
MATCH_CANDIDATES = 8

_log = structlog.get_logger()


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
    The response stays within the request's tokens. Its cursor leads this caller to more tools for the same question;
    a response whose cursor cannot be stored has none, and says so.

    Raises:
        IndexUnavailable: the index did not answer; nothing was found or counted.
        CursorInvalid: the cursor is not of this caller and question, was changed, or has expired.
        CursorsUnavailable: the request's cursor cannot be read now.
        BudgetTooSmall: not even one tool's name fits into the tokens of the request.
    """
    stopwatch, catalogue = Stopwatch(), catalogue.pinned()
    scope, ledger, policy = request.narrow(allowed), catalogue.ledger, catalogue.response_policy
    encoding = request.encoding or catalogue.encoding
    pages = SearchPages(policy.kept, caller.name, TOOL, request.question).after(request.cursor)
    steps = embed_steps(request.steps, catalogue.embedder)
    embed_ms = stopwatch.lap_ms("embed query")

    baseline = ledger.baseline(allowed, encoding).without(offered(caller, encoding))
    if request.cursor is not None:
        baseline = baseline.stated_before()
    sum_ms = stopwatch.lap_ms("sum baseline")

    found = _search(request, allowed, steps, pages, catalogue)
    nearest = found.hits[: request.limit]
    budget_result = apply_budget([hit.tool for hit in nearest if found.is_match], caller, catalogue.encoding)
    search_ms = stopwatch.lap_ms("search index")
    is_filled = catalogue.is_filled(bool(found.hits))
    if not is_filled:
        baseline = Baseline(0, 0)  # no savings are claimed against a part of the catalogue

    empty = empty_response(
        baseline,
        encoding,
        nothing=None if found.hits else _why_nothing(request, scope, allowed, catalogue),
        nearest=[] if found.is_match else [found.serving[hit.tool.qualified_name].name for hit in nearest],
        keywords_only=any(step.whole.dense is None for step in steps),
        being_listed=ledger.being_listed(scope),
        being_filled=not is_filled,
        budget_warnings=budget_result.warnings,
        filter_warnings=[] if request.cursor else filter_warnings(request.servers, request.groups, allowed, ledger),
    )
    result = SearchResult(
        hits=[hit for hit in nearest if hit.tool in budget_result.kept],
        serving=found.serving,
        is_all=len(found.hits) <= request.limit,
        empty=empty,
        baseline=baseline,
        encoding=encoding,
        stale_since=ledger.stale_since,
        cursor=new_name(),
        budget_warnings=budget_result.warnings,
        has_leaner_definitions=policy.has_leaner_definitions,
    )
    mode, budget = request.detail or policy.mode, policy.budget(request.max_tokens, encoding)
    response = within_budget(result, mode, budget)
    if response.next_cursor:
        shown = [hit.tool for hit in result.hits[: len(response.tools)]]
        try:
            pages.put(response.next_cursor, [*shown, *budget_result.excluded])
        except CursorsUnavailable as error:
            _log.warning("page_not_stored", tool=TOOL, reason=str(error))
            # an answer without its further pages serves a caller better than none
            warnings = [*budget_result.warnings, FURTHER_LOST]
            response = within_budget(replace(result, cursor=None, budget_warnings=warnings), mode, budget)
    return response, Timings(embed_ms, search_ms, sum_ms, stopwatch.lap_ms("fit answer"))


@dataclass(frozen=True, slots=True)
class _Found:
    """The hits of a page and at least one more, if there is one, and the servers of the page by tool.

    `is_match` means that a tool fits the request.
    """

    hits: Sequence[Hit]
    is_match: bool
    serving: Mapping[str, Serving]


def _search(
    request: FindRequest, allowed: Scope, steps: Sequence[Step], pages: SearchPages, catalogue: Catalogue
) -> _Found:
    """Search one replica of each set for definitions that no earlier page has shown."""
    scope, ledger, index = request.narrow(allowed), catalogue.ledger, catalogue.index
    searched = Replicated.of(scope, ledger.replica_sets(scope))
    callable_tools = searched if scope == allowed else Replicated.of(allowed, ledger.replica_sets(allowed))
    excluded = excluded_definitions(request.exclude or (), allowed, callable_tools.scope, index)
    searched = replace(searched, scope=replace(searched.scope, seen=excluded))
    corpus = callable_tools.scope if catalogue.index_is_embedded else ledger.corpus(callable_tools.scope)
    search = DistinctSearch(steps, searched.scope, index, corpus, searched.sets.strangers)
    most = max(request.limit, MATCH_CANDIDATES)
    hits = list(islice((hit for hit in search.hits(most + 1) if pages.is_new(hit.tool)), most + 1))
    # the first page has decided whether any tool fits
    is_match = request.cursor is not None or _has_match(search.results, hits[:most], catalogue)
    page = [hit.tool for hit in hits[: request.limit]]
    return _Found(hits, is_match, servings(page, searched, callable_tools, index))


def _why_nothing(request: FindRequest, scope: Scope, allowed: Scope, catalogue: Catalogue) -> str:
    """Return a sentence that is true of a search without any tool."""
    if request.cursor is not None:
        return NOTHING_FURTHER
    if catalogue.ledger.baseline(scope, catalogue.encoding).tools:
        return NOTHING_HAS_WORDS
    is_filtered = catalogue.ledger.baseline(allowed, catalogue.encoding).tools > 0
    return NOTHING_PASSES if is_filtered else NOTHING_VISIBLE


def _has_match(step_results: Sequence[StepResult], closest: Sequence[Hit], catalogue: Catalogue) -> bool:
    """Return whether any step found a tool by its name, by meaning, or by most of its words."""
    tools = [hit.tool for hit in closest]
    return any(is_match(result, tools, catalogue.embedder, catalogue.no_match_threshold) for result in step_results)
