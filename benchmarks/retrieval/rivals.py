"""The simple rivals over the same index: only BM25, only dense vectors, and reciprocal rank fusion."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from benchmarks.retrieval.data import Query, ToolKey
from benchmarks.retrieval.system import System
from query.search.ranking import DEPTH, round_robin, similarity
from shared.catalog import Candidates, Scope
from shared.text.embedding import query_vectors

# Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion Outperforms Condorcet", SIGIR 2009; k as there.
RRF_K = 60

Rank = Callable[[Candidates], Mapping[str, float]]


def bm25(candidates: Candidates) -> Mapping[str, float]:
    """Score by BM25 only."""
    return candidates.terms


def dense(candidates: Candidates) -> Mapping[str, float]:
    """Score by the dense vectors only."""
    points = list(candidates.points)
    return dict(zip(points, similarity(candidates, points).tolist(), strict=True)) if candidates.name else {}


def rrf(candidates: Candidates) -> Mapping[str, float]:
    """Score by reciprocal rank fusion of the two."""
    scores: defaultdict[str, float] = defaultdict(float)
    for scored in (dense(candidates), bm25(candidates)):
        for rank, point in enumerate(_ranked(scored)[:DEPTH], start=1):
            scores[point] += 1 / (RRF_K + rank)
    return scores


RIVALS: dict[str, Rank] = {"BM25 only": bm25, "dense only": dense, "RRF, k = 60": rrf}


def ask_rival(
    system: System, queries: Sequence[Query], k: int, rank: Rank, *, in_steps: bool
) -> dict[str, Sequence[ToolKey]]:
    """Return what a rival finds for each query, steps merged in turns as the product does."""
    return {query.id: _find(system, query, k, rank, in_steps=in_steps) for query in queries}


def _find(system: System, query: Query, k: int, rank: Rank, *, in_steps: bool) -> list[ToolKey]:
    texts = query.steps if in_steps and query.steps else (query.text,)
    asked = [query_vectors(text, system.embedder) for text in texts]
    found = system.index.search(asked, Scope(), DEPTH)
    chosen = round_robin([_ranked(rank(candidates)) for candidates in found], k)
    tools = system.index.get(chosen)
    return [system.key(tools[point].server_id, tools[point].definition.name) for point in chosen]


def _ranked(scores: Mapping[str, float]) -> list[str]:
    return sorted(scores, key=lambda point: (-scores[point], point))
