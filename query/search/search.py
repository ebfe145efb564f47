"""A search: the steps of a request as queries, their candidates, ranked, and then their tools, each definition once."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import islice, pairwise
from typing import TYPE_CHECKING

import structlog

from query.named import ServerNames
from query.search.ranking import DEPTH, rank_steps, round_robin, similarities
from query.turns import give_way
from shared.catalog import Candidates, IndexedTool, QueryVectors, Scope, ToolDefinition, point_id
from shared.errors import ModelUnavailable
from shared.text.bm25 import prose_terms, tool_terms, words
from shared.text.embedding import Embedder, keyword_vectors, query_vectors

if TYPE_CHECKING:
    from shared.index.tools import ToolIndex

# Shorter queries have no clauses, and shorter clauses do not count.
LONG_QUERY_WORDS = 20
MIN_CLAUSE_WORDS = 3
# Bounds of one request, shared equally by its steps, and its clauses by the long ones: each clause costs as much as a
# query, and the time of the model grows with the characters that it reads.
MAX_CLAUSES = 8
MAX_CHARACTERS = 8_000

# Longer texts, or texts of several words, are never a tool's name.
MAX_NAME_CHARACTERS = 200
# One round trip to the index; the embedded engine stops the whole process during a search.
STEPS_AT_A_TIME = 5
# Each round removes at least the definition that filled the candidates of the round before.
MAX_ROUNDS = 8
# Points whose order depends on the standing of their servers: of each step, and at most.
WINDOW, MAX_WINDOW = 32, 160

# Of the places of a usual page, a stranger's server has at most so many.
PLACES, PAGE = 3, 8
# While the tools of others score so much less than its own next tool: a share of that tool's score.
FITS_WITHIN = 0.3

# The share of the shorter text that a copy has in common with its original.
COPIED_SHARE = 0.6
# Fewer pairs are often equal by chance.
LEAST_PAIRS = 3
# A hostile text may be a hundred times as long.
COMPARED_CHARACTERS = 2_000
CACHED_TEXTS = 1_024

_CLAUSE_EDGE = re.compile(r"(?<=[.!?;])\s+|\n+|,\s+(?:and|then)\s+|\b(?:and\s+)?then\b")

NO_NAMES = ServerNames()

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a request. `clauses` is empty when the text is short."""

    text: str
    whole: QueryVectors
    clauses: tuple[QueryVectors, ...] = ()

    @property
    def queries(self) -> tuple[QueryVectors, ...]:
        """Return the queries of this step: the whole first, then the clauses."""
        return (self.whole, *self.clauses)

    @property
    def terms(self) -> frozenset[int]:
        """Return the terms of the whole text."""
        return frozenset(self.whole.terms.indices)


def embed_steps(texts: Sequence[str], embedder: Embedder) -> list[Step]:
    """Return the steps with their vectors; without a model, with terms only."""
    characters = MAX_CHARACTERS // max(len(texts), 1)
    try:
        return _steps(texts, characters, partial(query_vectors, embedder=embedder, characters=characters))
    except ModelUnavailable as error:
        _log.warning("keyword_search_fallback", reason=str(error))
        return _steps(texts, characters, keyword_vectors)


def clauses(text: str) -> list[str]:
    """Return the clauses of a long text that has several, in order, else nothing."""
    if len(text.split()) < LONG_QUERY_WORDS:
        return []
    parts = [part.strip() for part in _CLAUSE_EDGE.split(text)]
    long_enough = [part for part in parts if len(part.split()) >= MIN_CLAUSE_WORDS]
    return long_enough if len(long_enough) > 1 else []


def _steps(texts: Sequence[str], characters: int, vectors: Callable[[str], QueryVectors]) -> list[Step]:
    clauses_by_step = _shared([clauses(text[:characters]) for text in texts])
    parts = [(text, *own) for text, own in zip(texts, clauses_by_step, strict=True)]
    found = _one_by_one([query for step in parts for query in step], vectors)
    return [Step(text, next(found), tuple(islice(found, len(own)))) for text, *own in parts]


def _one_by_one(queries: Sequence[str], vectors: Callable[[str], QueryVectors]) -> Iterator[QueryVectors]:
    for number, query in enumerate(queries):
        if number:
            give_way()
        yield vectors(query)


def _shared(by_step: Sequence[list[str]]) -> list[list[str]]:
    """Return the first clauses of each long step, equally many; none if a long step would have only one."""
    share = MAX_CLAUSES // max(sum(map(bool, by_step)), 1)
    return [its_clauses[:share] if share > 1 else [] for its_clauses in by_step]


@dataclass(frozen=True)
class StepResult:
    """The result of one step: points whose tool has the step's text as its name, and points by score, both best first.

    `candidates` are those of the whole text, and `clauses` those of each clause.
    """

    step: Step
    candidates: Candidates
    clauses: Sequence[Candidates]
    named: Sequence[str]
    scores: Mapping[str, float]

    @cached_property
    def similarities(self) -> Mapping[str, float]:
        """The similarity of each candidate of the whole text."""
        return similarities(self.candidates)

    @property
    def is_cut_off(self) -> bool:
        """Return whether tools of the scope may be missing from the candidates."""
        found = self.candidates
        return any(len(scores) >= found.depth for scores in (found.name, found.text, found.terms))


@dataclass(frozen=True, slots=True)
class Hit:
    """A tool of the result, and its point; `score` is None if only its name matched."""

    tool: IndexedTool
    score: float | None
    point: str


@dataclass
class Search:
    """A search within `scope`, with the `results` of its steps; the statistics of BM25 count the tools of `corpus`.

    `strangers` are servers of the scope that take no place of others; see `Standing`. Tools of a server that a step
    names, by `names`, are ranked higher.

    Raises:
        IndexUnavailable: the index did not answer.
    """

    steps: Sequence[Step]
    scope: Scope
    index: ToolIndex
    corpus: Scope | None = None
    strangers: frozenset[str] = frozenset()
    names: ServerNames = NO_NAMES
    results: Sequence[StepResult] = field(init=False)
    _seen: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self._seen = set(self.scope.seen)
        self.results = self._search(self.scope)

    def hits(self, at_once: int) -> Iterator[Hit]:
        """Yield hits with distinct definitions, best first; one request to the index reads `at_once` of them.

        If equal definitions filled the candidates, the search continues without the definitions seen so far.

        Raises:
            IndexUnavailable: the index did not answer.
        """
        results = self.results
        for _ in range(MAX_ROUNDS):
            points, before = merged(results), len(self._seen)
            for hit in self._read(points, results, at_once):
                if hit.tool.definition_id not in self._seen:
                    self._seen.add(hit.tool.definition_id)
                    if self.scope.permits(hit.tool.server_id, hit.tool.definition):
                        yield hit
            if len(self._seen) - before == len(points) or not any(result.is_cut_off for result in results):
                return
            give_way()
            results = self._search(replace(self.scope, seen=frozenset(self._seen)))

    def _search(self, scope: Scope) -> list[StepResult]:
        return search(self.steps, scope, self.index, self.corpus, self.strangers, self.names)

    def _read(self, points: Sequence[str], results: Sequence[StepResult], at_once: int) -> Iterator[Hit]:
        window = min(WINDOW * len(self.steps), MAX_WINDOW) if self.strangers else 0
        if window:
            yield from Standing(self.strangers, self.steps).placed(hits(points[:window], results, self.index))
        for start in range(window, len(points), at_once):
            yield from hits(points[start : start + at_once], results, self.index)


def search(
    steps: Sequence[Step],
    scope: Scope,
    index: ToolIndex,
    corpus: Scope | None = None,
    strangers: Collection[str] = (),
    names: ServerNames = NO_NAMES,
) -> list[StepResult]:
    """Return the result of each step within the scope, five steps in one round trip.

    The statistics of BM25 count the tools of `corpus`, by default those of the scope.
    Tools of `strangers` are named by `server:tool` only, and no step names a stranger.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    found: list[list[Candidates]] = []
    for start in range(0, len(steps), STEPS_AT_A_TIME):
        if start:
            give_way()
        part = steps[start : start + STEPS_AT_A_TIME]
        candidates = iter(index.search([query for step in part for query in step.queries], scope, DEPTH, corpus))
        found += [list(islice(candidates, len(step.queries))) for step in part]
    named = [partial(names.named, asked=step.terms, strangers=strangers) for step in steps]
    return [
        StepResult(step, whole, clauses, _points_named(step.text, scope, index, strangers, scores), scores)
        for step, (whole, *clauses), scores in zip(steps, found, rank_steps(found, named), strict=True)
    ]


def _points_named(
    text: str, scope: Scope, index: ToolIndex, strangers: Collection[str], scores: Mapping[str, float]
) -> list[str]:
    """Return the points whose tool has the text as its name, best first."""
    if len(text) > MAX_NAME_CHARACTERS or len(text.split()) != 1:
        return []
    tools = index.find_by_name(text, scope, DEPTH)
    meant = (tool for tool in tools if tool.server_id not in strangers or tool.qualified_name == text)
    points = [point_id(tool.server_id, tool.definition.name) for tool in meant]
    return sorted(points, key=lambda point: -scores.get(point, -math.inf))


def merged(results: Sequence[StepResult]) -> list[str]:
    """Return the point ids of all steps, best first, each once."""
    rankings = [dict.fromkeys([*result.named, *result.scores]) for result in results]
    return round_robin(rankings, sum(map(len, rankings)))


def hits(chosen: Sequence[str], results: Sequence[StepResult], index: ToolIndex) -> list[Hit]:
    """Return the tools of these points without those removed since the search, each with its best score.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    tools = index.get(chosen)
    scores = {
        point: max((result.scores[point] for result in results if point in result.scores), default=None)
        for point in tools
    }
    return [Hit(tools[point], scores[point], point) for point in chosen if point in tools]


@dataclass(frozen=True, slots=True)
class Standing:
    """The order of hits by the servers that take no places of others: those without an owner, beside some with one.

    Without this order, a server that copies the texts of others comes first for a third of the requests for them;
    `benchmarks/results/capture.md` has the figures.
    """

    strangers: Collection[str]
    steps: Sequence[Step]

    def placed(self, hits: Sequence[Hit]) -> list[Hit]:
        """Return the hits, best first, each definition once; strangers take no places of other servers' tools.

        A definition of several servers is represented by a server that is no stranger. A stranger's copy of another
        server's tool is behind the other hits, unless the request has a term of it that the original lacks.
        A stranger's server leaves places to tools that fit nearly as well.
        """
        distinct = self._represented(hits)
        originals = [hit.tool.definition for hit in distinct if not self._is_strange(hit)]
        copied = [self._is_strange(hit) and self._has_original(hit, originals) for hit in distinct]
        ahead = [hit for hit, is_behind in zip(distinct, copied, strict=True) if not is_behind]
        behind = [hit for hit, is_behind in zip(distinct, copied, strict=True) if is_behind]
        return [*self._shared(ahead), *behind]

    def _is_strange(self, hit: Hit) -> bool:
        """Return whether a stranger has the tool, and no step is its name with its server."""
        is_named = any(step.text == hit.tool.qualified_name for step in self.steps)
        return hit.tool.server_id in self.strangers and not is_named

    def _represented(self, hits: Sequence[Hit]) -> list[Hit]:
        """Return each definition once, at its first place."""
        chosen: dict[str, Hit] = {}
        for hit in hits:
            first = chosen.setdefault(hit.tool.definition_id, hit)
            if self._is_strange(first) and not self._is_strange(hit):
                chosen[hit.tool.definition_id] = hit
        return list(chosen.values())

    def _has_original(self, hit: Hit, originals: Sequence[ToolDefinition]) -> bool:
        tool = hit.tool.definition
        return any(is_copy(tool, original) and not self._is_meant(tool, original) for original in originals)

    def _is_meant(self, tool: ToolDefinition, original: ToolDefinition) -> bool:
        """Return whether the request has a term of the tool that the original lacks, such as the name of a product."""
        asked = frozenset[int]().union(*(step.terms for step in self.steps))
        return not asked.intersection(_terms(tool)) <= _terms(original)

    def _shared(self, hits: Sequence[Hit]) -> list[Hit]:
        """Return the hits with the fourth and later ones of a stranger's server behind those that fit nearly as well.

        They are behind a page at most, and behind no tool that fits less well.
        """
        ahead, waiting = list[Hit](), list[Hit]()
        taken = Counter[str]()
        for position, hit in enumerate(hits):
            if waiting and (len(ahead) >= PAGE or not _fits_nearly(hit, waiting[0])):
                return [*ahead, *waiting, *hits[position:]]
            taken[hit.tool.server_id] += 1
            is_over = self._is_strange(hit) and taken[hit.tool.server_id] > PLACES
            (waiting if is_over else ahead).append(hit)
        return [*ahead, *waiting]


def is_copy(tool: ToolDefinition, original: ToolDefinition) -> bool:
    """Return whether the names and descriptions of two tools have most of the shorter text in common.

    Two texts are compared by their pairs of adjacent terms. The share that the shorter one has in common with the other
    survives added sentences and templates. Broder, "On the Resemblance and Containment of Documents", 1997.
    A text of a few words is a copy of a text of another tool of the same name only.
    """
    one, other = (_pairs(each.name, each.description[:COMPARED_CHARACTERS]) for each in (tool, original))
    common, shorter = len(one & other), min(len(one), len(other))
    if shorter < LEAST_PAIRS:
        return tool.name == original.name and common == shorter
    return common >= max(COPIED_SHARE * shorter, LEAST_PAIRS)


@lru_cache(CACHED_TEXTS)
def _pairs(name: str, description: str) -> frozenset[tuple[str, str]]:
    return frozenset((*pairwise(prose_terms(words(name))), *pairwise(prose_terms(description))))


def _terms(tool: ToolDefinition) -> set[int]:
    return set(tool_terms(tool, "").indices)


def _fits_nearly(hit: Hit, waiting: Hit) -> bool:
    if hit.score is None or waiting.score is None:
        return True
    return waiting.score - hit.score <= FITS_WITHIN * abs(waiting.score)
