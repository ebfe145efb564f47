"""Find the tools that a task needs, and count the tokens saved: the main path of the query service.

`FindTool` is the tool that agents call: the same answer again, or `find_tool`:

request ─▶ steps ─▶ embed ─▶ baseline ─▶ search one replica of each set ─▶ fuse and rank ─▶ merge ─▶ match?
        ─▶ context budget (apply_budget) ─▶ servers of each tool ─▶ token budget (within_budget) ─▶ response
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import structlog
from mcp.types import Tool, ToolAnnotations

from query.absent import absences, is_overdue
from query.answers.answer import TOOL, FindResponse, SearchResult, answer_text, nearest_line, within_budget
from query.answers.pages import SearchPages
from query.caller import ANYONE, Caller
from query.kept import Recent, new_name
from query.metrics import TOKENS_SAVED
from query.records import Baseline
from query.replicas import Replicated, Serving, servings
from query.search.ranking import answer_length, is_match
from query.search.request import FindRequest, excluded_definitions, filter_warnings
from query.search.search import Hit, Search, Step, embed_steps
from query.tool import ALWAYS_LOADED, CatalogueTool, input_schema, output_schema
from query.toolsets.offers import NOTHING, apply_budget
from shared.errors import CursorsUnavailable
from shared.service.tracing import record_span

if TYPE_CHECKING:
    from query.catalogue import Catalogue
    from query.toolsets.offers import Offers
    from shared.catalog import Scope

NOTHING_VISIBLE = "The catalogue holds no tools that you may see."
NOTHING_PASSES = "No tool that you may see passes the filters of this search."
NOTHING_HAS_WORDS = "No tool has a word of this search. Say what it should do in other words."
NOTHING_FURTHER = "This search has no further tools."
FURTHER_LOST = "There are more, but a cursor to them cannot be stored at the moment."
BEING_FILLED = "The catalogue is being filled. Ask again in a few seconds."
NOTHING_FITS = "No tool seems to fit. Say what it should do in other words, or ask for one of the nearest by name."
KEYWORDS_ONLY = "Tools were searched by keywords alone: the embedding model cannot be loaded."

# The match is decided on at least so many tools, so that a small `limit` does not turn a match into none.
MATCH_CANDIDATES = 8
# A usual answer has less. This bounds the memory of all answers that are kept to be sent again.
MAX_KEPT_TOKENS = 8_000

FIND_TOOL = Tool(
    name="find_tool",
    description=(
        "Search the tools of all connected MCP servers by what they do. "
        "For a task of several steps, give one description a step. "
        "Returns the best matches and the tokens this saved."
    ),
    input_schema=input_schema(FindRequest),
    output_schema=output_schema(FindResponse),
    annotations=ToolAnnotations(title="Find tools", read_only_hint=True, idempotent_hint=True, open_world_hint=False),
    _meta=ALWAYS_LOADED,
)

_log = structlog.get_logger()


class FindTool(CatalogueTool[FindRequest]):
    """Finds tools in a catalogue; `offers` has those that `tools/list` shows, None: it shows no tools of servers."""

    tool = FIND_TOOL
    paging = "own"
    request_model = FindRequest

    def __init__(self, catalogue: Catalogue, offers: Offers | None = None) -> None:
        self._catalogue = catalogue
        self._offers = offers
        self._recent: Recent[FindResponse] = Recent()

    def respond(self, request: FindRequest, caller: Caller) -> dict[str, Any]:
        """Return the search response; log and count the search."""
        return self.answer(request, caller)[0]

    def answer(self, request: FindRequest, caller: Caller) -> tuple[dict[str, Any], str]:
        """Return the search response and its text, of which most is known; log and count the search."""
        response, timings = self._found(request, caller)
        _log_found(response, timings)
        if request.cursor is None:
            tokens = response.token_metrics
            TOKENS_SAVED.labels(tokens.encoding).inc(tokens.tokens_saved)
        found = response.as_object()
        return found, answer_text(response.tools, found)

    def _found(self, request: FindRequest, caller: Caller) -> tuple[FindResponse, Timings]:
        """Return the response to this request, or the same one again if no server has changed since."""
        catalogue = self._catalogue.pinned()
        state = catalogue.ledger.state()
        encoding = request.encoding or catalogue.encoding
        offered = self._offers.cost(caller, encoding) if self._offers else NOTHING
        allowed = catalogue.scope(caller)
        # with the model: its change replaces the index, without a change of the records
        key = (request.model_dump_json(), caller, allowed, offered, catalogue.embedder.model)
        if (recent := self._recent.get(key, state)) is not None:
            return recent, Timings()
        response, timings = find_tool(request, allowed, catalogue, caller, offered)
        if may_repeat(response):
            self._recent.keep(key, state, response)
        return response, timings


def may_repeat(response: FindResponse) -> bool:
    """Return whether an answer names tools, is not very long, and has the cursor to all others."""
    names_tools, is_short = response.tools or response.nearest, response.token_metrics.answer_tokens <= MAX_KEPT_TOKENS
    return bool(names_tools) and is_short and FURTHER_LOST not in response.warnings


def _log_found(response: FindResponse, timings: Timings) -> None:
    metrics = response.token_metrics
    _log.info(
        "tools_found",
        hits=len(response.tools),
        no_match=bool(response.no_match),
        baseline_tokens=metrics.baseline_tokens,
        returned_tokens=metrics.returned_tokens,
        tokens_saved=metrics.tokens_saved,
        uncounted=metrics.uncounted_total,
        embed_ms=round(timings.embed_ms, 2),
        search_ms=round(timings.search_ms, 2),
        sum_ms=round(timings.sum_ms, 2),
        fit_ms=round(timings.fit_ms, 2),
        total_ms=round(timings.total_ms, 2),
    )


@dataclass(frozen=True, slots=True)
class Timings:
    """The parts of one search, in milliseconds: embedding the query, searching, the baseline, and the answer's form.

    All parts are 0 for a response that is sent again.
    """

    embed_ms: float = 0.0
    search_ms: float = 0.0
    sum_ms: float = 0.0
    fit_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        """Return the sum of the parts."""
        return self.embed_ms + self.search_ms + self.sum_ms + self.fit_ms


def find_tool(
    request: FindRequest,
    allowed: Scope,
    catalogue: Catalogue,
    caller: Caller = ANYONE,
    offered: Baseline = NOTHING,
) -> tuple[FindResponse, Timings]:
    """Return the allowed tools that fit the request, and the tokens saved against all allowed tools.

    The request's filters do not change the baseline. It is without `offered`, the cost of the tools that the caller has
    in its `tools/list`, in the encoding of the response.

    If no tool fits, the response has no tools and names the nearest. Without a model, the search uses keywords only.
    The response stays within the request's tokens. Its cursor leads this caller to more tools for the same question;
    a response whose cursor cannot be stored has none, and says so.

    Raises:
        IndexUnavailable: the index did not answer; nothing was found or counted.
        CursorInvalid: the cursor is not of this caller and question, was changed, or has expired.
        CursorsUnavailable: the request's cursor cannot be read now.
        BudgetTooSmall: not even one tool's name fits into the tokens of the request.
    """
    stopwatch, catalogue = _Stopwatch(), catalogue.pinned()
    policy, encoding = catalogue.response_policy, request.encoding or catalogue.encoding
    pages = SearchPages(policy.kept, caller.name, TOOL, request.question).after(request.cursor)
    steps = embed_steps(request.steps, catalogue.embedder)
    embed_ms = stopwatch.lap_ms("embed query")

    baseline = catalogue.ledger.baseline(allowed, encoding).without(offered)
    if request.cursor is not None:
        baseline = baseline.stated_before()
    sum_ms = stopwatch.lap_ms("sum baseline")

    found = _search(request, allowed, steps, pages, catalogue)
    page = found.hits[: found.length]
    affordable = apply_budget([hit.tool for hit in page if found.is_match], caller, catalogue.encoding)
    kept = {tool.qualified_name for tool in affordable.kept}
    is_filled = catalogue.is_filled(bool(found.hits))
    search_ms = stopwatch.lap_ms("search index")

    result = SearchResult(
        hits=[hit for hit in page if hit.tool.qualified_name in kept],
        serving=found.serving,
        is_all=len(found.hits) == len(page),
        baseline=baseline if is_filled else Baseline(0, 0),  # no savings are claimed against a part of the catalogue
        encoding=encoding,
        cursor=new_name(),
        nearest=[]
        if found.is_match
        else [nearest_line(hit.tool, found.serving[hit.tool.qualified_name]) for hit in page],
        keywords_only=any(step.whole.dense is None for step in steps),
        warnings=_warnings(request, allowed, steps, found, catalogue, is_filled=is_filled),
        budget_warnings=affordable.warnings,
    )
    mode, budget = request.detail or policy.mode, policy.budget(request.max_tokens, encoding)
    response = within_budget(result, mode, budget)
    if response.next_cursor:
        shown = [hit.tool for hit in result.hits[: len(response.tools)]]
        try:
            pages.put(response.next_cursor, [*shown, *affordable.excluded])
        except CursorsUnavailable as error:
            _log.warning("page_not_stored", tool=TOOL, reason=str(error))
            # an answer without its further pages serves a caller better than none
            warnings = [*affordable.warnings, FURTHER_LOST]
            response = within_budget(replace(result, cursor=None, budget_warnings=warnings), mode, budget)
    return response, Timings(embed_ms, search_ms, sum_ms, stopwatch.lap_ms("fit answer"))


@dataclass(frozen=True, slots=True)
class _Found:
    """The hits, of which the page has the first `length`, and the servers of the page by qualified name.

    `is_match` means that a tool fits the request.
    """

    hits: Sequence[Hit]
    length: int
    is_match: bool
    serving: Mapping[str, Serving]


def _search(
    request: FindRequest, allowed: Scope, steps: Sequence[Step], pages: SearchPages, catalogue: Catalogue
) -> _Found:
    """Search one replica of each set for definitions that no earlier page has shown."""
    scope, ledger, index = request.narrow(allowed), catalogue.ledger, catalogue.index
    searched = Replicated.of(scope, ledger.replica_sets(scope))
    # names are called in the whole scope, so they are unambiguous there
    callable_tools = searched if scope == allowed else Replicated.of(allowed, ledger.replica_sets(allowed))
    excluded = excluded_definitions(request.exclude or (), allowed, callable_tools.scope, index)
    if excluded:
        searched = replace(searched, scope=replace(searched.scope, seen=excluded))
    # with denied tools: to check the rules for the whole corpus would take as long as the search
    counted = replace(callable_tools.scope, rules=())
    corpus = counted if catalogue.index_is_embedded else ledger.corpus(counted)
    search = Search(steps, searched.scope, index, corpus, searched.sets.strangers, ledger.names())

    most = max(request.limit, MATCH_CANDIDATES)
    hits = list(islice((hit for hit in search.hits(most + 1) if pages.is_new(hit.tool)), most + 1))
    closest = [hit.tool for hit in hits[:most]]
    # the first page has decided whether any tool fits: by its name, by meaning, or by most of its words
    fits = request.cursor is not None or any(
        is_match(result, closest, catalogue.embedder, catalogue.no_match_threshold) for result in search.results
    )
    # what lies further down is on the next page, which ends nowhere but at the limit
    ends = fits and request.cursor is None and len(search.results) == 1
    length = min(answer_length(search.results[0], hits[:most]) if ends else len(hits), request.limit)
    return _Found(hits, length, fits, servings(closest[:length], searched, callable_tools, index))


def _warnings(
    request: FindRequest,
    allowed: Scope,
    steps: Sequence[Step],
    found: _Found,
    catalogue: Catalogue,
    *,
    is_filled: bool,
) -> list[str]:
    """Return what the caller should know about the search, in sentences that are true of it."""
    scope, ledger = request.narrow(allowed), catalogue.ledger
    # the first page has named the unknown filters
    warnings = [] if request.cursor else filter_warnings(request.servers, request.groups, allowed, ledger)
    if any(step.whole.dense is None for step in steps):
        warnings.append(KEYWORDS_ONLY)
    absent = ledger.absent(scope)
    awaited, servers = ledger.being_listed(scope)
    awaited -= sum(map(is_overdue, absent))  # a few seconds will not do for these
    if found.hits and not found.is_match:
        warnings.append(NOTHING_FITS)
    elif not found.hits and is_filled and not awaited:
        warnings.append(_why_nothing(request, scope, allowed, catalogue))
    if not request.cursor:
        is_about_all = not (found.hits and found.is_match) or bool(request.servers or request.groups)
        named = [*request.steps, *(request.servers or ())]
        warnings += absences(absent, named, all_unreached=is_about_all)
    if awaited:
        warnings.append(f"Servers still being listed: {awaited} of {servers}. Ask again in a few seconds.")
    elif not is_filled:
        warnings.append(BEING_FILLED)
    return warnings


def _why_nothing(request: FindRequest, scope: Scope, allowed: Scope, catalogue: Catalogue) -> str:
    """Return why a search found no tool at all, not even one that does not fit."""
    if request.cursor is not None:
        return NOTHING_FURTHER
    if catalogue.ledger.baseline(scope, catalogue.encoding).tools:
        return NOTHING_HAS_WORDS
    is_filtered = catalogue.ledger.baseline(allowed, catalogue.encoding).tools > 0
    return NOTHING_PASSES if is_filtered else NOTHING_VISIBLE


class _Stopwatch:
    """Measures laps from its creation on; each lap ends where the next begins."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap_ms(self, part: str) -> float:
        """Return the milliseconds since the last lap, and record them in the trace under this name."""
        now, ended_ns = time.perf_counter(), time.time_ns()
        elapsed, self._last = now - self._last, now
        record_span(part, ended_ns - int(elapsed * 1e9), ended_ns)
        return elapsed * 1e3
