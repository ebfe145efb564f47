"""Search the index for the steps of a request, five in one round trip, and rank what each step found."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from query.search.ranking import DEPTH, rank_steps, round_robin
from query.search.steps import Step
from query.turns import give_way
from shared.catalog import Candidates, IndexedTool, Scope, point_id
from shared.index.tools import ToolIndex

# Longer texts, or texts of several words, are never a tool's name.
MAX_NAME_CHARACTERS = 200
# One round trip to the index; the embedded engine stops the whole process during a search.
STEPS_AT_A_TIME = 5


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


@dataclass(frozen=True, slots=True)
class Hit:
    """A tool of the result; `score` is None if only its name matched."""

    tool: IndexedTool
    score: float | None


def search(
    steps: Sequence[Step],
    scope: Scope,
    index: ToolIndex,
    corpus: Scope | None = None,
    strangers: Collection[str] = (),
) -> list[StepResult]:
    """Return the result of each step within the scope.

    The statistics of BM25 count the tools of `corpus`, by default those of the scope.
    Tools of `strangers` are named by `server:tool` only.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    found: list[list[Candidates]] = []
    for start in range(0, len(steps), STEPS_AT_A_TIME):
        if start:
            give_way()
        found += _candidates(steps[start : start + STEPS_AT_A_TIME], scope, index, corpus)
    return [
        StepResult(step, whole, clauses, _points_named(step.text, scope, index, strangers), scores)
        for step, (whole, *clauses), scores in zip(steps, found, rank_steps(found), strict=True)
    ]


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


def best(results: Sequence[StepResult], limit: int, index: ToolIndex) -> list[Hit]:
    """Return the steps' best tools, merged.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    return hits(merged(results)[:limit], results, index)


def _candidates(steps: Sequence[Step], scope: Scope, index: ToolIndex, corpus: Scope | None) -> list[list[Candidates]]:
    """Return the candidates of each step's queries, those of the whole text first."""
    found = iter(index.search([query for step in steps for query in step.queries], scope, DEPTH, corpus))
    return [list(islice(found, len(step.queries))) for step in steps]


def _points_named(text: str, scope: Scope, index: ToolIndex, strangers: Collection[str]) -> list[str]:
    if len(text) > MAX_NAME_CHARACTERS or len(text.split()) != 1:
        return []
    tools = index.find_by_name(text, scope, DEPTH)
    meant = (tool for tool in tools if tool.server_id not in strangers or tool.qualified_name == text)
    return [point_id(tool.server_id, tool.definition.name) for tool in meant]
