"""One ranking from several scored lists: fusion, clauses, and a boost for servers with good tools.

Fusion adds scores that were normalised within the query (CombSUM over z-scores: Fox and Shaw, "Combination of
Multiple Searches", TREC-2, 1994; Montague and Aslam, "Relevance Score Normalization for Metasearch", CIKM 2001).
Reciprocal ranks discard the distances between scores, and scored below the dense list by itself.
Results hardly change around these weights; docs/retrieval.md lists the experiments.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice, zip_longest

from shared.catalog import Candidates, server_half

# Candidates taken from each list.
DEPTH = 150
DENSE_WEIGHT = 0.7
CLAUSE_WEIGHT = 0.3
SERVER_WEIGHT = 0.3

Scores = Mapping[str, float]
"""By point id, higher is better."""


def rank(whole: Candidates, clauses: Sequence[Candidates] = ()) -> dict[str, float]:
    """Return the scores of a step's candidates, best first, given those of the whole text and of its clauses."""
    boosted = boost_servers(with_best_clause(fuse(whole), [fuse(clause) for clause in clauses]))
    # equal scores in an order that does not depend on the engine's
    return dict(sorted(boosted.items(), key=lambda item: (-item[1], item[0])))


def similarity(candidates: Candidates) -> dict[str, float]:
    """Return each candidate's similarity to the query, -1 to 1: the middle between mean and maximum of both vectors.

    A candidate that is missing from a list is at most as close as the last one there, and counts as that.
    """
    points = candidates.points
    name, text = _completed(candidates.name, points), _completed(candidates.text, points)
    return {point: ((name[point] + text[point]) / 2 + max(name[point], text[point])) / 2 for point in points}


def fuse(candidates: Candidates) -> dict[str, float]:
    """Return each candidate's weighted sum of z-scores, dense and BM25."""
    terms = _completed(candidates.terms, candidates.points, is_full=len(candidates.terms) >= candidates.depth)
    dense, sparse = z_scores(similarity(candidates)), z_scores(terms)
    return {point: DENSE_WEIGHT * dense[point] + (1 - DENSE_WEIGHT) * sparse[point] for point in dense}


def z_scores(scores: Scores) -> dict[str, float]:
    """Return the scores in standard deviations from their mean; all 0 when they are all the same."""
    if not scores:
        return {}
    mean = math.fsum(scores.values()) / len(scores)
    # not statistics.pstdev, whose exact fractions take longer than the search
    deviation = math.sqrt(math.fsum((score - mean) ** 2 for score in scores.values()) / len(scores))
    if deviation < 1e-9:  # noqa: PLR2004  # rounding alone
        return dict.fromkeys(scores, 0.0)
    return {point: (score - mean) / deviation for point, score in scores.items()}


def with_best_clause(whole: Scores, clauses: Sequence[Scores]) -> dict[str, float]:
    """Return the scores mixed with each tool's best over the clauses, so that a part of a task finds its tool.

    A tool that is no candidate somewhere scores there as the last one.
    """
    if not clauses:
        return dict(whole)
    points = {point for scores in (whole, *clauses) for point in scores}
    total = _completed(whole, points)
    by_clause = [_completed(scores, points) for scores in clauses]
    best = {point: max(scores[point] for scores in by_clause) for point in points}
    return {point: (1 - CLAUSE_WEIGHT) * total[point] + CLAUSE_WEIGHT * best[point] for point in points}


def boost_servers(scores: Scores) -> dict[str, float]:
    """Return the scores, each raised by a share of the best one of its server: a task rarely uses a single tool."""
    best: dict[str, float] = {}
    for point, score in scores.items():
        server = server_half(point)
        best[server] = max(score, best.get(server, score))
    return {point: score + SERVER_WEIGHT * best[server_half(point)] for point, score in scores.items()}


def _completed(scores: Scores, points: Collection[str], *, is_full: bool = True) -> dict[str, float]:
    """Return a score for each point; one that is missing gets the lowest, or 0 where the list was not cut off."""
    lowest = _lowest(scores.values()) if is_full else 0.0
    return {point: scores.get(point, lowest) for point in points}


def _lowest(scores: Iterable[float]) -> float:
    return min(scores, default=0.0)


def round_robin(rankings: Sequence[Iterable[str]], limit: int) -> list[str]:
    """Return the first of each ranking, then the second of each, and so on: at most `limit`, none twice."""
    rounds = zip_longest(*rankings)
    interleaved = (item for round_ in rounds for item in round_ if item is not None)
    return list(islice(dict.fromkeys(interleaved), limit))
