"""Rankings from several scored lists, and whether the best tool fits at all.

Fusion adds scores that were normalised within the query (CombSUM over z-scores: Fox and Shaw, "Combination of
Multiple Searches", TREC-2, 1994; Montague and Aslam, "Relevance Score Normalization for Metasearch", CIKM 2001).
Reciprocal ranks discard the distances between scores, and scored below the dense list by itself.
Results hardly change around these weights; docs/decisions.md has what was measured.

An array of scores has one for each of a step's points, which are in the order of their ids, so that no result depends
on the engine's order.

No tool is better than a wrong one. Short queries are similar to everything and whole tasks to nothing, so a cosine
means little by itself. It is compared with that of reference objects, the tool categories (cohort normalisation).
Speaker verification has the same problem and compares with a cohort of other speakers. Source: Higgins, Bahler and
Porter, "Speaker Verification Using Randomized Phrase Prompting", Digital Signal Processing 1, 1991.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, groupby, islice, repeat, zip_longest
from typing import TYPE_CHECKING, TypeAlias

from shared.catalog import Candidates, IndexedTool, QueryVectors, server_half
from shared.text.bm25 import tool_terms
from shared.text.embedding import ReferenceVectors
from shared.text.subjects import SUBJECTS, subject_passages

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from query.search.search import Hit, StepResult
    from shared.catalog import ToolDefinition
    from shared.text.embedding import Embedder

# Candidates taken from each list; recall hardly changes from 30 to 150.
DEPTH = 75
DENSE_WEIGHT = 0.7
CLAUSE_WEIGHT = 0.3
SERVER_WEIGHT = 0.3
# Of a tool whose server the text names; results change little from 0.75 to 1.5.
NAMED_WEIGHT = 1.0
# Of a server's best score for another step of the request: a task uses fewer servers than tools.
OTHER_STEPS_WEIGHT = 0.5
# Scores closer than this are equal. The engine adds a BM25 score's terms in an order that depends on all its points.
ROUNDING = 1e-5

# A tool with this share of the query's terms matches at any similarity: the model may not cover the language.
MIN_COVERAGE = 0.7
# Of a smaller share; results change little from 0.05 to 0.12.
COVERAGE_WEIGHT = 0.1
# Of the category similarity; results change little from 0.15 to 0.25.
CATEGORY_WEIGHT = 0.2
# No adjusted similarity is lower.
LOWEST = -1 - CATEGORY_WEIGHT
# For the bundled model; benchmarks/results/retrieval.md has other thresholds.
NO_MATCH_THRESHOLD = 0.26
NO_THRESHOLD = -1.0
# An answer ends behind the last tool with this share of the best score, or of the best similarity, and has at least
# two. Shorter by a third at no loss of recall, where the text is short and a tool is at least so similar to it:
# docs/decisions.md has how these were chosen.
SCORE_SHARE, SIMILARITY_SHARE, LEAST_TOOLS = 0.7, 0.78, 2
CLEAR_SIMILARITY, CLEAR_WORDS = 0.58, 19
# Tools whose terms are remembered, some 6 KB each.
REMEMBERED_TERMS = 1024
# Texts of tool categories; every query is about equally far from the others.
NEAREST = 3

Scores: TypeAlias = "NDArray[np.float64]"
"""By point, higher is better."""


Named = Callable[[Collection[str]], Collection[str]]
"""Returns those of some servers that a step names; servers are halves of point ids."""


def rank(whole: Candidates, clauses: Sequence[Candidates] = ()) -> dict[str, float]:
    """Return the scores of a single step's candidates, as `rank_steps` does."""
    (scores,) = rank_steps([(whole, *clauses)])
    return scores


def rank_steps(steps: Sequence[Sequence[Candidates]], named: Sequence[Named] = ()) -> list[dict[str, float]]:
    """Return the scores of each step's candidates, best first.

    A step has the candidates of its whole text, and then those of its clauses. `named` tells what each step names.
    """
    points_of = [_points(candidates) for candidates in steps]
    servers_of = [list(map(server_half, points)) for points in points_of]
    scores_of = [_scored(candidates, points) for candidates, points in zip(steps, points_of, strict=True)]
    boosted_of = list(map(boost_servers, scores_of, servers_of))
    if len(steps) > 1:
        best_of = [best_by_server(scores, servers) for scores, servers in zip(scores_of, servers_of, strict=True)]
        for number, servers in enumerate(servers_of):
            others = best_of[:number] + best_of[number + 1 :]
            boosted_of[number] = boosted_of[number] + OTHER_STEPS_WEIGHT * best_of_others(servers, others)
    for number, names in enumerate(named):
        if chosen := names(servers_of[number]):
            boosted_of[number] = boosted_of[number] + [NAMED_WEIGHT * (each in chosen) for each in servers_of[number]]
    return list(map(_best_first, boosted_of, points_of))


def similarity(candidates: Candidates, points: Sequence[str]) -> Scores:
    """Return the similarity of these candidates to the query, -1 to 1: between mean and maximum of both vectors.

    A candidate that is missing from a list is at most as close as the last one there, and counts as that.
    """
    import numpy as np  # noqa: PLC0415  # 0.1 s, which the start of a client's service does not need

    name, text = (_scores(found, points, missing=_lowest(found)) for found in (candidates.name, candidates.text))
    return ((name + text) / 2 + np.maximum(name, text)) / 2


def similarities(candidates: Candidates) -> dict[str, float]:
    """Return the similarity of each candidate to the query; none if all are candidates by their terms alone."""
    if not candidates.name and not candidates.text:
        return {}
    points = list(candidates.points)
    return dict(zip(points, similarity(candidates, points).tolist(), strict=True))


def fuse(candidates: Candidates, points: Sequence[str]) -> Scores:
    """Return the weighted sum of z-scores, dense and BM25, of these candidates."""
    is_cut_off = len(candidates.terms) >= candidates.depth
    terms = _scores(candidates.terms, points, missing=_lowest(candidates.terms) if is_cut_off else 0.0)
    return DENSE_WEIGHT * z_scores(similarity(candidates, points)) + (1 - DENSE_WEIGHT) * z_scores(terms)


def z_scores(scores: Scores) -> Scores:
    """Return the scores in standard deviations from their mean; all 0 when they are all the same."""
    import numpy as np  # noqa: PLC0415  # as above

    if not scores.size:
        return scores
    # as `mean` and `std` of numpy, which take twice the time for a hundred scores
    from_mean = scores - np.add.reduce(scores) / scores.size
    deviation = math.sqrt(np.add.reduce(from_mean * from_mean) / scores.size)
    return scores * 0.0 if deviation < ROUNDING else from_mean / deviation


def with_best_clause(whole: Scores, clauses: Sequence[Scores]) -> Scores:
    """Return the scores mixed with each point's best over the clauses, so that a part of a task finds its tool."""
    import numpy as np  # noqa: PLC0415  # as above

    return (1 - CLAUSE_WEIGHT) * whole + CLAUSE_WEIGHT * np.max(clauses, axis=0) if clauses else whole


def boost_servers(scores: Scores, servers: Sequence[str]) -> Scores:
    """Return the scores, each raised by a share of the best one of its server: a task rarely uses a single tool.

    `servers` has the server of each score. Those of one server are side by side, since a point's id begins with it.
    """
    import numpy as np  # noqa: PLC0415  # as above

    if not servers:
        return scores
    sizes = [len(list(own)) for _, own in groupby(servers)]
    best = np.maximum.reduceat(scores, [0, *accumulate(sizes[:-1])])
    return scores + SERVER_WEIGHT * np.repeat(best, sizes)


def best_by_server(scores: Scores, servers: Sequence[str]) -> dict[str, float]:
    """Return the best score of each server."""
    best: dict[str, float] = {}
    for server, score in zip(servers, scores.tolist(), strict=True):
        best[server] = max(best.get(server, score), score)
    return best


def best_of_others(servers: Sequence[str], others: Sequence[Mapping[str, float]]) -> Scores:
    """Return for each of these servers its best score in other steps.

    A server without candidates in a step scores there as the last one.
    """
    import numpy as np  # noqa: PLC0415  # as above

    lists = [(best, _lowest(best)) for best in others]
    by_server = {server: max(best.get(server, lowest) for best, lowest in lists) for server in set(servers)}
    return np.array([by_server[server] for server in servers])


def _points(candidates: Iterable[Candidates]) -> list[str]:
    return sorted({point for each in candidates for found in (each.name, each.text, each.terms) for point in found})


def _scored(candidates: Sequence[Candidates], points: Sequence[str]) -> Scores:
    whole, *clauses = (_fused(each, points) for each in candidates)
    return with_best_clause(whole, clauses)


def _best_first(scores: Scores, points: Sequence[str]) -> dict[str, float]:
    """Return the scores by point, best first; equal scores in the order of their points."""
    import numpy as np  # noqa: PLC0415  # as above

    falling = (-scores).argsort()
    sorted_scores = scores[falling]
    ranks = np.zeros(len(scores), dtype=np.intp)
    ranks[falling[1:]] = np.cumsum(sorted_scores[1:] - sorted_scores[:-1] < -ROUNDING)
    order: list[int] = ranks.argsort(kind="stable").tolist()
    return dict(zip([points[number] for number in order], scores[order].tolist(), strict=True))


def _fused(candidates: Candidates, points: Sequence[str]) -> Scores:
    """Return the fused scores of these points; one that is no candidate scores as the last one."""
    if len(candidates.points) == len(points):
        return fuse(candidates, points)
    own = sorted(candidates.points)
    by_point = dict(zip(own, fuse(candidates, own).tolist(), strict=True))
    return _scores(by_point, points, missing=_lowest(by_point))


def _scores(found: Mapping[str, float], points: Sequence[str], *, missing: float) -> Scores:
    import numpy as np  # noqa: PLC0415  # as above

    return np.fromiter(map(found.get, points, repeat(missing)), dtype=np.float64, count=len(points))


def _lowest(found: Mapping[str, float]) -> float:
    return min(found.values(), default=0.0)


def round_robin(rankings: Sequence[Iterable[str]], limit: int) -> list[str]:
    """Return the first of each ranking, then the second of each, and so on: at most `limit`, none twice."""
    if len(rankings) == 1:
        return list(islice(rankings[0], limit))
    rounds = zip_longest(*rankings)
    interleaved = (item for round_ in rounds for item in round_ if item is not None)
    return list(islice(dict.fromkeys(interleaved), limit))


def answer_length(result: StepResult, hits: Sequence[Hit]) -> int:
    """Return how many of these hits, best first, answer a request of one step: to the last that is named or fits well.

    A longer text may need several tools, and where none is very similar, the right one may be any of them.
    """
    most_similar = max(result.similarities.values(), default=LOWEST)
    if most_similar < CLEAR_SIMILARITY or len(result.step.text.split()) > CLEAR_WORDS:
        return len(hits)
    best = max(result.scores.values())
    good = (
        number
        for number, hit in enumerate(hits, start=1)
        if hit.point in result.named
        or (hit.score is not None and best - hit.score <= (1 - SCORE_SHARE) * abs(best))
        or result.similarities.get(hit.point, -1.0) >= SIMILARITY_SHARE * most_similar
    )
    return min(len(hits), max((LEAST_TOOLS, *good)))


def is_match(result: StepResult, closest: Sequence[IndexedTool], embedder: Embedder, no_match_threshold: float) -> bool:
    """Return whether a tool of this step fits it well enough; without a model, every tool does.

    `closest` are the best tools of the request.

    Raises:
        ModelUnavailable: the model cannot be loaded.
    """
    if result.named:
        return True
    if no_match_threshold <= NO_THRESHOLD or not result.similarities:
        return bool(result.candidates.points)
    closeness = step_similarity(result, embedder)
    # the terms of tools take longer than the similarity
    return closeness >= no_match_threshold or closeness + _by_terms(result, closest) >= no_match_threshold


def fit(result: StepResult, closest: Sequence[IndexedTool], embedder: Embedder) -> float:
    """Return how well tools fit: the highest similarity, and a tenth of the largest share of terms in one of `closest`.

    Infinity: the query is a tool's name, or one of `closest` has most terms.

    Raises:
        ModelUnavailable: the model cannot be loaded.
    """
    return math.inf if result.named else step_similarity(result, embedder) + _by_terms(result, closest)


def step_similarity(result: StepResult, embedder: Embedder) -> float:
    """Return the adjusted similarity of the whole text, or that of its second-best clause, if it is higher.

    A long text is close to nothing. Two of its clauses need a tool, since a single one may fit by chance.
    LOWEST: there are no candidates by meaning.

    Raises:
        ModelUnavailable: the model cannot be loaded.
    """
    found = zip(result.step.queries, (result.similarities, *map(similarities, result.clauses)), strict=True)
    whole, *clauses = (adjusted_similarity(query, by_point, embedder) for query, by_point in found)
    return max([whole, *sorted(clauses)[-2:-1]])


def adjusted_similarity(query: QueryVectors, by_point: Mapping[str, float], embedder: Embedder) -> float:
    """Return the highest similarity of a candidate, less a fifth of the similarity of the nearest tool categories.

    Both are cosines, so it lies between -1.2 and 1.2, and hardly ever below 0. LOWEST: there are no candidates.

    Raises:
        ModelUnavailable: the model cannot be loaded.
    """
    if query.dense is None or not by_point:
        return LOWEST
    return max(by_point.values()) - CATEGORY_WEIGHT * category_similarity(query.dense, embedder)


def coverage(query: QueryVectors, tools: Sequence[IndexedTool]) -> float:
    """Return the largest share of the query's terms in one of these tools; 0 without terms or tools."""
    query_terms = set(query.terms.indices)
    shares = (len(query_terms.intersection(_terms(tool))) / len(query_terms) for tool in tools if query_terms)
    return max(shares, default=0.0)


def _by_terms(result: StepResult, closest: Sequence[IndexedTool]) -> float:
    share = coverage(result.step.whole, closest)
    return math.inf if share >= MIN_COVERAGE else COVERAGE_WEIGHT * share


def _terms(tool: IndexedTool) -> frozenset[int]:
    # a tool in the index has no declared name; the server id, which responses show, takes its place
    return _terms_of(tool.definition, tool.server_id)


@lru_cache(REMEMBERED_TERMS)
def _terms_of(definition: ToolDefinition, server_id: str) -> frozenset[int]:
    return frozenset(tool_terms(definition, server_id).indices)


def category_similarity(query: NDArray[np.float32], embedder: Embedder) -> float:
    """Return the mean cosine of a query's vector, of unit length, to the nearest texts of the tool categories.

    Raises:
        ModelUnavailable: the model cannot be loaded.
    """
    cosines = CATEGORIES.of(embedder) @ query
    cosines.sort()
    return float(cosines[-NEAREST:].mean())


def passages() -> list[str]:
    """Return the texts that represent the categories: one for each object, then one for each category."""
    listed = ((category, objects.split(", ")) for category, objects in SUBJECTS.items())
    of_objects = [f"create a new {each} in {category}" for category, objects in listed for each in objects]
    return [*of_objects, *subject_passages()]


CATEGORIES = ReferenceVectors(passages)
