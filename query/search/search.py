"""Search the index for all steps of a request in one round trip, and rank what each step found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from query.search.ranking import DEPTH, rank, round_robin
from query.search.steps import Step
from shared.catalog import Candidates, IndexedTool, Scope, point_id
from shared.index.contract import ToolIndex

# Longer texts, or texts of several words, are never a tool's name.
MAX_NAME_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step found: tools of that very name, and all others by score, best first."""

    step: Step
    candidates: Candidates
    named: Sequence[str]
    scores: Mapping[str, float]

    @property
    def ranking(self) -> list[str]:
        """Return the point ids, best first."""
        return list(dict.fromkeys([*self.named, *self.scores]))


@dataclass(frozen=True, slots=True)
class Hit:
    """A tool found; `score` is absent when only its name was looked up."""

    tool: IndexedTool
    score: float | None


def search(steps: Sequence[Step], scope: Scope, index: ToolIndex) -> list[StepResult]:
    """Return what each step found in the scope.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    candidates = iter(index.search([query for step in steps for query in step.queries], scope, DEPTH))
    return [_step_result(step, list(islice(candidates, len(step.queries))), scope, index) for step in steps]


def ranking(results: Sequence[StepResult]) -> list[str]:
    """Return the point ids that the steps found, merged, best first."""
    return round_robin([result.ranking for result in results], sum(len(result.ranking) for result in results))


def hits(chosen: Sequence[str], results: Sequence[StepResult], index: ToolIndex) -> list[Hit]:
    """Return the tools of these points; one that was removed in the meantime is left out.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    tools = index.get(chosen)
    return [Hit(tools[point], _score(point, results)) for point in chosen if point in tools]


def best(results: Sequence[StepResult], limit: int, index: ToolIndex) -> list[Hit]:
    """Return the steps' best tools, merged.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    return hits(ranking(results)[:limit], results, index)


def _step_result(step: Step, candidates: Sequence[Candidates], scope: Scope, index: ToolIndex) -> StepResult:
    whole, *clauses = candidates
    return StepResult(step, whole, _points_named(step.text, scope, index), rank(whole, clauses))


def _points_named(text: str, scope: Scope, index: ToolIndex) -> list[str]:
    if len(text) > MAX_NAME_CHARACTERS or len(text.split()) != 1:
        return []
    tools = index.find_by_name(text, scope, DEPTH)
    return [point_id(tool.server_id, tool.definition.name) for tool in tools]


def _score(point: str, results: Sequence[StepResult]) -> float | None:
    return max((result.scores[point] for result in results if point in result.scores), default=None)
