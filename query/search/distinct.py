"""A search whose hits have distinct definitions, also where many servers offer the same tool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from query.search.search import Hit, StepResult, hits, merged, search
from query.search.standing import Standing
from query.search.steps import Step
from query.turns import give_way
from shared.catalog import Scope
from shared.index.tools import ToolIndex

# Each round removes at least the definition that filled the candidates of the round before.
MAX_ROUNDS = 8
# Points whose order depends on the standing of their servers: of each step, and at most.
WINDOW, MAX_WINDOW = 32, 160


@dataclass
class DistinctSearch:
    """A search within `scope`; the statistics of BM25 count the tools of `corpus`, or of `scope`.

    `strangers` are servers of the scope that take no place of others; see `Standing`.
    """

    steps: Sequence[Step]
    scope: Scope
    index: ToolIndex
    corpus: Scope | None = None
    strangers: frozenset[str] = frozenset()
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
            yield from self._distinct(points, results, at_once)
            if len(self._seen) - before == len(points) or not any(_is_cut_off(result) for result in results):
                return
            give_way()
            results = self._search()

    def _search(self) -> list[StepResult]:
        scope = replace(self.scope, seen=frozenset(self._seen))
        return search(self.steps, scope, self.index, self.corpus, self.strangers)

    def _distinct(self, points: Sequence[str], results: Sequence[StepResult], at_once: int) -> Iterator[Hit]:
        for hit in self._read(points, results, at_once):
            if hit.tool.definition_id not in self._seen:
                self._seen.add(hit.tool.definition_id)
                yield hit

    def _read(self, points: Sequence[str], results: Sequence[StepResult], at_once: int) -> Iterator[Hit]:
        window = min(WINDOW * len(self.steps), MAX_WINDOW) if self.strangers else 0
        if window:
            yield from Standing(self.strangers, self.steps).placed(hits(points[:window], results, self.index))
        for start in range(window, len(points), at_once):
            yield from hits(points[start : start + at_once], results, self.index)


def _is_cut_off(result: StepResult) -> bool:
    candidates = result.candidates
    return any(len(found) >= candidates.depth for found in (candidates.name, candidates.text, candidates.terms))
