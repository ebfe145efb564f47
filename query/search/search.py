"""A search: the candidates of each step of a request, ranked, and then their tools, each definition once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from query.search.ranking import DEPTH, rank_steps, round_robin
from query.turns import give_way
from shared.catalog import Candidates, IndexedTool, Scope, point_id

if TYPE_CHECKING:
    from query.search.steps import Step
    from shared.index.tools import ToolIndex

# Longer texts, or texts of several words, are never a tool's name.
MAX_NAME_CHARACTERS = 200
# One round trip to the index; the embedded engine stops the whole process during a search.
STEPS_AT_A_TIME = 5
# Each round removes at least the definition that filled the candidates of the round before.
MAX_ROUNDS = 8
# Points whose order depends on the standing of their servers: of each step, and at most.
WINDOW, MAX_WINDOW = 32, 160


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one step: points whose tool has the step's text as its name, and points by score, best first.

    `candidates` are those of the whole text, and `clauses` those of each clause.
    """

    step: Step
    candidates: Candidates
    clauses: Sequence[Candidates]
    named: Sequence[str]
    scores: Mapping[str, float]

    @property
    def is_cut_off(self) -> bool:
        """Return whether tools of the scope may be missing from the candidates."""
        found = self.candidates
        return any(len(scores) >= found.depth for scores in (found.name, found.text, found.terms))


@dataclass(frozen=True, slots=True)
class Hit:
    """A tool of the result; `score` is None if only its name matched."""

    tool: IndexedTool
    score: float | None


@dataclass
class Search:
    """A search within `scope`, with the `results` of its steps; the statistics of BM25 count the tools of `corpus`.

    `strangers` are servers of the scope that take no place of others; see `Standing`.

    Raises:
        IndexUnavailable: the index did not answer.
    """

    steps: Sequence[Step]
    scope: Scope
    index: ToolIndex
    corpus: Scope | None = None
    strangers: frozenset[str] = frozenset()
    results: Sequence[StepResult] = field(init=False)
    _seen: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self._seen = set(self.scope.seen)
        self.results = self._search()

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
                    yield hit
            if len(self._seen) - before == len(points) or not any(result.is_cut_off for result in results):
                return
            give_way()
            results = self._search()

    def _search(self) -> list[StepResult]:
        scope = replace(self.scope, seen=frozenset(self._seen))
        return search(self.steps, scope, self.index, self.corpus, self.strangers)

    def _read(self, points: Sequence[str], results: Sequence[StepResult], at_once: int) -> Iterator[Hit]:
        window = min(WINDOW * len(self.steps), MAX_WINDOW) if self.strangers else 0
        if window:
            from query.search.standing import Standing  # noqa: PLC0415  # most scopes have no strangers

            yield from Standing(self.strangers, self.steps).placed(hits(points[:window], results, self.index))
        for start in range(window, len(points), at_once):
            yield from hits(points[start : start + at_once], results, self.index)


def search(
    steps: Sequence[Step],
    scope: Scope,
    index: ToolIndex,
    corpus: Scope | None = None,
    strangers: Collection[str] = (),
) -> list[StepResult]:
    """Return the result of each step within the scope, five steps in one round trip.

    The statistics of BM25 count the tools of `corpus`, by default those of the scope.
    Tools of `strangers` are named by `server:tool` only.

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
    return [
        StepResult(step, whole, clauses, _points_named(step.text, scope, index, strangers), scores)
        for step, (whole, *clauses), scores in zip(steps, found, rank_steps(found), strict=True)
    ]


def _points_named(text: str, scope: Scope, index: ToolIndex, strangers: Collection[str]) -> list[str]:
    if len(text) > MAX_NAME_CHARACTERS or len(text.split()) != 1:
        return []
    tools = index.find_by_name(text, scope, DEPTH)
    meant = (tool for tool in tools if tool.server_id not in strangers or tool.qualified_name == text)
    return [point_id(tool.server_id, tool.definition.name) for tool in meant]


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
    return [Hit(tools[point], scores[point]) for point in chosen if point in tools]
