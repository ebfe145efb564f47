"""Rankings from several scored lists: fusion, clauses, and a boost for servers with good tools.

Fusion adds scores that were normalised within the query (CombSUM over z-scores: Fox and Shaw, "Combination of
Multiple Searches", TREC-2, 1994; Montague and Aslam, "Relevance Score Normalization for Metasearch", CIKM 2001).
Reciprocal ranks discard the distances between scores, and scored below the dense list by itself.
Results hardly change around these weights; docs/retrieval.md lists the experiments.

An array of scores has one for each of a step's points, which are in the order of their ids, so that no result depends
on the engine's order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, groupby, islice, repeat, zip_longest
from typing import TYPE_CHECKING, TypeAlias

from shared.catalog import Candidates, server_half

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Candidates taken from each list; recall hardly changes from 30 to 150.
DEPTH = 75
DENSE_WEIGHT = 0.7
CLAUSE_WEIGHT = 0.3
SERVER_WEIGHT = 0.3
# Of a server's best score for another step of the request: a task uses fewer servers than tools.
OTHER_STEPS_WEIGHT = 0.5
# Scores closer than this are equal. The engine adds a BM25 score's terms in an order that depends on all its points.
ROUNDING = 1e-5

Scores: TypeAlias = "NDArray[np.float64]"
"""By point, higher is better."""


def rank(whole: Candidates, clauses: Sequence[Candidates] = ()) -> dict[str, float]:
    """Return the scores of a single step's candidates, as `rank_steps` does."""
    (scores,) = rank_steps([(whole, *clauses)])
    return scores


def rank_steps(steps: Sequence[Sequence[Candidates]]) -> list[dict[str, float]]:
    """Return the scores of each step's candidates, best first.

    A step has the candidates of its whole text, and then those of its clauses.
    """
    points_of = [_points(candidates) for candidates in steps]
    scores_of = [_scored(candidates, points) for candidates, points in zip(steps, points_of, strict=True)]
    boosted_of = list(map(boost_servers, scores_of, points_of))
    if len(steps) > 1:
        best_of = [best_by_server(scores, points) for scores, points in zip(scores_of, points_of, strict=True)]
        for number, points in enumerate(points_of):
            others = best_of[:number] + best_of[number + 1 :]
            boosted_of[number] = boosted_of[number] + OTHER_STEPS_WEIGHT * best_of_others(points, others)
    return list(map(_best_first, boosted_of, points_of))


def similarity(candidates: Candidates, points: Sequence[str]) -> Scores:
    """Return the similarity of these candidates to the query, -1 to 1: between mean and maximum of both vectors.

    A candidate that is missing from a list is at most as close as the last one there, and counts as that.
    """
    import numpy as np  # noqa: PLC0415  # 0.1 s, which the start of a client's service does not need

    name, text = (_scores(found, points, missing=_lowest(found)) for found in (candidates.name, candidates.text))
    return ((name + text) / 2 + np.maximum(name, text)) / 2


def fuse(candidates: Candidates, points: Sequence[str]) -> Scores:
    """Return the weighted sum of z-scores, dense and BM25, of these candidates."""
    is_cut_off = len(candidates.terms) >= candidates.depth
    terms = _scores(candidates.terms, points, missing=_lowest(candidates.terms) if is_cut_off else 0.0)
    return DENSE_WEIGHT * z_scores(similarity(candidates, points)) + (1 - DENSE_WEIGHT) * z_scores(terms)


def z_scores(scores: Scores) -> Scores:
    """Return the scores in standard deviations from their mean; all 0 when they are all the same."""
    deviation = float(scores.std()) if scores.size else 0.0
    if deviation < ROUNDING:
        return scores * 0.0
    return (scores - float(scores.mean())) / deviation


def with_best_clause(whole: Scores, clauses: Sequence[Scores]) -> Scores:
    """Return the scores mixed with each point's best over the clauses, so that a part of a task finds its tool."""
    import numpy as np  # noqa: PLC0415  # as above

    return (1 - CLAUSE_WEIGHT) * whole + CLAUSE_WEIGHT * np.max(clauses, axis=0) if clauses else whole


def boost_servers(scores: Scores, points: Sequence[str]) -> Scores:
    """Return the scores, each raised by a share of the best one of its server: a task rarely uses a single tool."""
    import numpy as np  # noqa: PLC0415  # as above

    if not points:
        return scores
    # the points of a server are side by side, since an id begins with the half of its server
    sizes = [len(list(own)) for _, own in groupby(map(server_half, points))]
    best = np.maximum.reduceat(scores, [0, *accumulate(sizes[:-1])])
    return scores + SERVER_WEIGHT * np.repeat(best, sizes)


def best_by_server(scores: Scores, points: Sequence[str]) -> dict[str, float]:
    """Return the best score of each server's points."""
    best: dict[str, float] = {}
    for server, score in zip(map(server_half, points), scores.tolist(), strict=True):
        best[server] = max(best.get(server, score), score)
    return best


def best_of_others(points: Sequence[str], others: Sequence[Mapping[str, float]]) -> Scores:
    """Return for each point the best score of its server in other steps.

    A server without candidates in a step scores there as the last one.
    """
    import numpy as np  # noqa: PLC0415  # as above

    lists = [(best, _lowest(best)) for best in others]
    by_server = {server: max(best.get(server, lowest) for best, lowest in lists) for server in map(server_half, points)}
    return np.array([by_server[server] for server in map(server_half, points)])


def _points(candidates: Iterable[Candidates]) -> list[str]:
    return sorted(set[str]().union(*(each.points for each in candidates)))


def _scored(candidates: Sequence[Candidates], points: Sequence[str]) -> Scores:
    whole, *clauses = (_fused(each, points) for each in candidates)
    return with_best_clause(whole, clauses)


def _best_first(scores: Scores, points: Sequence[str]) -> dict[str, float]:
    """Return the scores by point, best first; equal scores in the order of their points."""
    import numpy as np  # noqa: PLC0415  # as above

    falling = (-scores).argsort()
    ranks = np.empty(len(scores), dtype=np.intp)
    ranks[falling] = np.cumsum(np.diff(scores[falling], prepend=np.inf) < -ROUNDING)
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
